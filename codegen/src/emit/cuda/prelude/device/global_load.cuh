// One element of global memory that no thread writes during the kernel.
DEV float global_load(const float* p) { float x; asm("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(p)); return x; }
