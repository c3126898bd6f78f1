// A condition that the kernel states does not hold: reported as a write to address 0, which nothing owns.
DEV void check_failed() { kiln->access(0, 4, KILN_WRITE, KILN_HERE); }
