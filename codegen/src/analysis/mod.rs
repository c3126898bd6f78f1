//! Facts computed from the IR on demand: ranges and divisibility of indices, uses, liveness.
