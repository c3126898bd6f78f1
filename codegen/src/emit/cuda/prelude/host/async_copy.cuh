// Asynchronous copies are the machine's own.
