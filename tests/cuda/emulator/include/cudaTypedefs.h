// The part of CUDA's driver interface that the CUDA backend uses: contexts. Its functions have no names here;
// cudaGetDriverEntryPointByVersion gives them, as the real one does.
#pragma once

typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_CONTEXT = 201 } CUresult;

typedef CUresult (*PFN_cuDeviceGet_v2000)(CUdevice* device, int ordinal);
typedef CUresult (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext* context, CUdevice device);
typedef CUresult (*PFN_cuCtxPushCurrent_v4000)(CUcontext context);
typedef CUresult (*PFN_cuCtxPopCurrent_v4000)(CUcontext* context);
typedef CUresult (*PFN_cuCtxGetCurrent_v4000)(CUcontext* context);
typedef CUresult (*PFN_cuCtxGetDevice_v2000)(CUdevice* device);
