// These are the machine's own (`hopper.h`).
