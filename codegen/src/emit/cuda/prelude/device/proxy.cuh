// What this thread wrote to shared memory becomes visible to bulk copies and matrix instructions.
DEV void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
