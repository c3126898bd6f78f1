//! Mixtures of experts: which experts a token goes to, the order of rows that grouped products read, and what moves rows
//! there and back.

pub mod expand_reduce;
pub mod fused_mapping;
pub mod gate;
pub mod group_topk;
pub mod layout;
mod local_id;
pub mod misc;
mod rank;
pub mod topk;
