//! Measurements beyond the command line: `peers.py` times other libraries by the method of `kiln bench`. This library is
//! empty; it lets benches be built and linted with the workspace.
