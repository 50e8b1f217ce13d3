/* Puts a GPU that is not there before cuDNN: its properties stand in for the handle, which only a driver can give.
 *
 * The linker sends core/cuda's calls here (-Wl,--wrap): a graph gets no handle, heuristics and plans get the
 * properties. Everything else goes to cuDNN itself. */
#include "tests/offline/offline.h"

#include <stdio.h>
#include <stdlib.h>

cudnnStatus_t __real_cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *elements);
cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *elements);
cudnnStatus_t __wrap_cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t __wrap_cudnnDestroy(cudnnHandle_t handle);

static cudnnBackendDescriptor_t properties;

static void need(cudnnStatus_t status, const char *what)
{
    char text[400] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return;
    cudnnGetLastErrorString(text, sizeof text);
    fprintf(stderr, "%s: %s %s\n", what, cudnnGetErrorString(status), text);
    exit(1);
}

static void read_properties(void)
{
    static char text[8192];
    FILE *const file = fopen(OFFLINE_PROPERTIES, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    need(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties), "a descriptor");
    need(__real_cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                         (int64_t)bytes, text),
         OFFLINE_PROPERTIES);
    need(cudnnBackendFinalize(properties), OFFLINE_PROPERTIES);
}

static cudnnStatus_t give_properties(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name)
{
    if (!properties)
        read_properties();
    return __real_cudnnBackendSetAttribute(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
}

cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
        return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
        return give_properties(of, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    const cudnnStatus_t status = __real_cudnnBackendSetAttribute(of, name, type, count, elements);
    if (status == CUDNN_STATUS_SUCCESS && name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
        return give_properties(of, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    return status;
}

cudnnStatus_t __wrap_cudnnCreate(cudnnHandle_t *handle)
{
    *handle = (cudnnHandle_t)(void *)&properties;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t __wrap_cudnnDestroy(cudnnHandle_t handle)
{
    return CUDNN_STATUS_SUCCESS;
}
