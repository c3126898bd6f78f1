//! Parts of a layer, one file a block, each with its equations on top: weights as a struct that mirrors the checkpoint's names,
//! state of a sequence, and a function from inputs to output.
//!
//! Everything that computes is a call of `operators`. State of a sequence lives on the host as [`Rows`] and goes up for every
//! step: exact and simple, for comparisons; caches that stay on the device belong to an engine. Not here: the order of layers
//! (`forward`).

pub mod compressed;
pub mod csa2;
pub mod engram;
pub mod experts;
pub mod latent;
pub mod rotary;
pub mod streams;

use crate::error::Result;
use crate::operators::{Lists, Operators};
use kiln_codegen::abi::TensorView;

/// Rows of a cache.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Numbers of a row.
    pub width: usize,
    /// Rows after each other.
    pub values: Vec<f32>,
}

impl Rows {
    /// No rows yet.
    pub fn new(width: usize) -> Self {
        Rows { width, values: vec![] }
    }
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.width.max(1)
    }
    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
    /// Adds rows.
    pub fn extend(&mut self, values: &[f32]) {
        self.values.extend_from_slice(values);
    }
    /// Drops the first rows.
    pub fn drop_first(&mut self, rows: usize) {
        self.values.drain(..rows * self.width);
    }
    /// The first rows on the device.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload_first(&self, ops: &Operators, rows: usize) -> Result<TensorView> {
        ops.upload(&[rows, self.width], &self.values[..rows * self.width])
    }
    /// All rows on the device.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload(&self, ops: &Operators) -> Result<TensorView> {
        self.upload_first(ops, self.len())
    }
}

/// Lists of rows, one a query, as an operator takes them.
///
/// # Errors
/// Not enough memory.
pub fn lists(ops: &Operators, of_query: &[Vec<usize>]) -> Result<Lists> {
    let most = of_query.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let padded = |list: &Vec<usize>| {
        let fill = std::iter::repeat_n(-1, most - list.len());
        list.iter().map(|&i| i as i32).chain(fill).collect::<Vec<_>>()
    };
    let indices: Vec<i32> = of_query.iter().flat_map(padded).collect();
    let lengths: Vec<i32> = of_query.iter().map(|l| l.len() as i32).collect();
    Ok(Lists {
        indices: ops.upload_i32(&[of_query.len(), most], &indices)?,
        lengths: ops.upload_i32(&[of_query.len()], &lengths)?,
    })
}
