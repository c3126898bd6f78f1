// A warp: one lane for all of it, and values that are the same in all lanes.
DEV u32 lane_index() { u32 x; asm("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }
// Tells the compiler that all lanes hold the same value.
DEV u32 warp_uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }
// True in one lane; all lanes of the warp ask.
DEV bool elect_one() {
    u32 chosen;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}
