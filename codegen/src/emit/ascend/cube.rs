//! Matrix products: what the cube does, and how tiles get to it and back.

use super::lower::{Lower, Res};
use crate::ir::{BlockId, IxVarId, OpId};

/// What is known about tiles of products.
#[derive(Clone, Debug, Default)]
pub struct Matrix {}

impl Lower<'_> {
    /// Takes an element loop that belongs to a product.
    pub fn matrix_loop(&mut self, _id: OpId, _vars: &[(IxVarId, usize)], _body: BlockId) -> Res<bool> {
        Ok(false)
    }
    /// Buffers whose order rings keep.
    pub fn ringed(&self) -> std::collections::BTreeSet<super::tree::BufId> {
        Default::default()
    }
    /// `gemm`.
    pub fn gemm(&mut self, id: OpId) -> Res<()> {
        Err(self.refuse(id, "matrix products have no Ascend form yet", "choose another target"))
    }
}
