/* Types of elements, for the emulated cuBLASLt, and what the real cuDNN's header wants besides (tests/offline). */
#ifndef WF_TESTS_EMULATE_LIBRARY_TYPES_H
#define WF_TESTS_EMULATE_LIBRARY_TYPES_H

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType_t;
typedef enum libraryPropertyType_t { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;

#endif
