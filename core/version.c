/* The version and the configuration of the library, both written by CMake (cmake/WeftVersion.cmake,
 * cmake/WeftConfiguration.cmake) from core/version.h and from what it found. Programs and wf-doctor call it. */
#include "core/version.h"

const char *wf_version(void)
{
    return WF_BUILT_VERSION;
}

const char *wf_configuration(void)
{
    return WF_BUILT_CONFIGURATION;
}
