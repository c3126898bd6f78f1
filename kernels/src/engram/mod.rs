//! Engram: a memory of n-grams looked up by hash, and the gate that mixes it into the hidden state.

pub mod gate;
pub mod hash;
