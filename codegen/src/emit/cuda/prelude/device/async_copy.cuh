// Copies from global to shared memory that run on while the thread goes on; bytes beyond the valid ones become zero.
DEV void cp_async16(void* to, const void* from, u32 valid_bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async8(void* to, const void* from, u32 valid_bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async4(void* to, const void* from, u32 valid_bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
