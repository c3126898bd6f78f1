//! Which tokens attention should read: scores of an index over cached keys, and selection of the largest.

pub mod largest;
pub mod logits_fp4;
pub mod logits_fp8;
mod score;
pub mod topk_select;
