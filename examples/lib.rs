//! Numbered lessons, each a program of its own; `cargo test` runs them on the CPU. This library is empty.
