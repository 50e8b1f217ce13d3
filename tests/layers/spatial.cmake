weft_test(upsample LEVEL layers)
weft_test(equiv_spatial LEVEL layers RANKS 1 2 3 4 6 8 ENVIRONMENT TEST_SAMPLES=20)
weft_test(equiv_mesh LEVEL layers RANKS 1 2 3 4 6 8 ENVIRONMENT TEST_SAMPLES=20)
weft_test_samples(equiv_spatial 9 RANKS 1 2 3 4 6 8)
weft_test_samples(equiv_mesh 9 RANKS 1 2 3 4 6 8)
weft_test(mesh_layers LEVEL layers RANKS 1 2 4 8)
weft_test(spatial_unet LEVEL optim RANKS 1 2 3 4 6 8)
weft_test(spatial_misuse LEVEL layers RANKS 1 2 4)
weft_test(spatial_overlap LEVEL layers RANKS 2)
weft_test(spatial_chain LEVEL layers RANKS 1 2 3 4 6)
# Recomputed input gradients are equal bit for bit.
weft_test_ranks(equiv_spatial_deterministic equiv_spatial ${CMAKE_CURRENT_SOURCE_DIR}/layers/equiv_spatial.c RANKS 3 4
  ARGS f64_ref ENVIRONMENT WEFT_DETERMINISTIC=1)
