/* In place of CUDA's header, of which NCCL's uses nothing. */
