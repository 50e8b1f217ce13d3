#!/bin/sh
# A libcuda.so.1 without a GPU, for cuDNN to load: tests/offline/driver.sh CC STUB OUT
# It has the names of the toolkit's stub library. Each call says that there is no device, but those that tell a version
# and look up names.
set -eu
cc=$1 stub=$2 out=$3
mkdir -p "$out"
{
    cat <<'CODE'
#define _GNU_SOURCE
#include <dlfcn.h>
enum { VERSION = 13000, NO_DEVICE = 100, NOT_FOUND = 500 };
int cuDriverGetVersion(int *version);
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found);
int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) {
        void *const self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        *function = self ? dlsym(self, name) : 0;
    }
    return *function ? 0 : NOT_FOUND;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found)
{
    const int status = cuGetProcAddress(name, function, version, flags);
    if (found)
        *found = status ? 1 : 0;
    return status;
}
static int loaded;
int cuLibraryLoadData(void **library);
int cuLibraryLoadData(void **library)
{
    *library = &loaded;
    return 0;
}
int cuLibraryGetKernel(void **kernel);
int cuLibraryGetKernel(void **kernel)
{
    *kernel = &loaded;
    return 0;
}
int cuKernelGetFunction(void **function);
int cuKernelGetFunction(void **function)
{
    *function = &loaded;
    return 0;
}
int cuKernelSetAttribute(void);
int cuKernelSetAttribute(void)
{
    return 0;
}
int cuLibraryUnload(void);
int cuLibraryUnload(void)
{
    return 0;
}
CODE
    nm -D --defined-only "$stub" | awk '$2 == "T" && $3 ~ /^cu[A-Z]/ && $3 !~ /^cu(DriverGetVersion|GetProcAddress(_v2)?|LibraryLoadData|LibraryGetKernel|KernelGetFunction|KernelSetAttribute|LibraryUnload)$/ {
        printf "int %s(void);\nint %s(void)\n{\n    return NO_DEVICE;\n}\n", $3, $3 }'
} >"$out/driver.c"
"$cc" -std=c11 -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$out/driver.c" -ldl
