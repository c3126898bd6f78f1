// A condition that the kernel states does not hold: the launch ends with an error.
DEV void check_failed() { asm volatile("trap;"); }
