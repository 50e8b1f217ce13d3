/* Decoding and resizing of pictures; called from the prefetch thread too. */
#ifndef WF_DATASETS_PICTURE_IMPL_H
#define WF_DATASETS_PICTURE_IMPL_H

#include "core/dtype.h"
#include "core/status_author.h"

#include <stdint.h>

/* Height and width of a PNG or JPEG file, from its header. */
wf_status wf_picture_size(const char *path, int64_t *height, int64_t *width) WF_NODISCARD;

/* A PNG or JPEG file as u8 [channels,height,width], resized. A file that is damaged or not whole is WF_ERR_FORMAT. */
wf_status wf_picture_read(const char *path, int64_t channels, int64_t height, int64_t width,
                          uint8_t *planar) WF_NODISCARD;

/* One plane, u8 or f32. */
wf_status wf_plane_resize(wf_dtype dtype, const void *in, int64_t in_height, int64_t in_width, void *out,
                          int64_t height, int64_t width) WF_NODISCARD;

#endif
