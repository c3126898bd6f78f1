//! Weights on the device, by their published names: each decoded to f32 and uploaded once.
//!
//! Whoever holds a [`Source`] asks for a name and the shape it needs; the checkpoint was compared with the configuration before,
//! so a tensor that does not fit is a mistake that `audit` has named with its file. Cutting and permuting rows happens here,
//! once, so that layers see each part as a tensor of its own.

use crate::checkpoint::shard::Checkpoint;
use crate::error::Result;
use crate::operators::Operators;
use kiln_codegen::abi::TensorView;

/// A matrix on the host, row-major.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Columns of a row.
    pub columns: usize,
    /// Rows after each other.
    pub values: Vec<f32>,
}

impl Matrix {
    /// A row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.columns..][..self.columns]
    }
    /// The chosen rows, in order.
    pub fn pick(&self, rows: impl IntoIterator<Item = usize>) -> Matrix {
        Matrix { columns: self.columns, values: rows.into_iter().flat_map(|i| self.row(i).to_vec()).collect() }
    }
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }
    /// This matrix above another.
    pub fn above(mut self, below: Matrix) -> Matrix {
        self.values.extend(below.values);
        self
    }
}

/// A checkpoint and the device its weights go to.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// The device.
    pub ops: &'a Operators,
}

impl Source<'_> {
    /// A tensor in its own shape.
    ///
    /// # Errors
    /// A tensor that cannot be read; not enough memory.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        let (shape, values) = self.checkpoint.decoded(name)?;
        self.ops.upload(&shape, &values)
    }
    /// A matrix on the host.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        let (shape, values) = self.checkpoint.decoded(name)?;
        Ok(Matrix { columns: shape.last().copied().unwrap_or(1), values })
    }
    /// A matrix on the device.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload(&self, m: &Matrix) -> Result<TensorView> {
        self.ops.upload(&[m.rows(), m.columns], &m.values)
    }
    /// As [`Source::upload`], rows cut into blocks of `each`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload_blocks(&self, m: &Matrix, each: usize) -> Result<TensorView> {
        self.ops.upload(&[m.rows() / each.max(1), each, m.columns], &m.values)
    }
}
