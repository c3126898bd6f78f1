// Waits until the kernel before this one on the stream has ended and its writes are visible.
DEV void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// From now on the next kernel's blocks may take what room there is; it waits itself.
DEV void let_the_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }
