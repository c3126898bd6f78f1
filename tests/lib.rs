//! Tests across crates; each file beside this one is a target of its own. This library is empty.
