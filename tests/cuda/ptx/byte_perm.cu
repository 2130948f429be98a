// CUDA's __byte_perm does not repeat signs as PTX's prmt can: the fourth bit of a selector is lost on the way to PTX.
__global__ void repeat_sign(const unsigned* from, unsigned* to) {
  to[threadIdx.x] = __byte_perm(from[threadIdx.x], 0, 0xbb32);
}
