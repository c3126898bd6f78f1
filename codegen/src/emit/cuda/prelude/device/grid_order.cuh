// Launches that overlap: results of the previous grid are there after the wait; the next grid may start from the call on.
DEV void grid_wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void grid_allow_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
