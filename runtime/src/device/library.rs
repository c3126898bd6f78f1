//! Products of a vendor's library on a device, to compare Kiln's with. Only CUDA devices have one (cuBLASLt).

use crate::error::Result;
use kiln_codegen::abi::TensorView;
use std::fmt::Debug;

/// `d[m, n] = a[m, k] · b[n, k]ᵀ`, all contiguous; a and b bf16, or e4m3 with scales; d bf16 or f32.
#[derive(Clone, Debug)]
pub struct Product {
    /// `[m, k]`.
    pub a: TensorView,
    /// `[n, k]`.
    pub b: TensorView,
    /// `[m, n]`.
    pub d: TensorView,
    /// Scales.
    pub kind: Kind,
}

/// Scales of a product, all f32.
#[derive(Clone, Debug)]
pub enum Kind {
    /// None.
    Plain,
    /// One of each operand.
    Tensor {
        /// Of `a`: `[1]`.
        a: TensorView,
        /// Of `b`: `[1]`.
        b: TensorView,
        /// Let the matrix unit keep its short accumulator for all of K.
        fast: bool,
    },
    /// One of each row and 128 of K of `a`, one of 128 rows and 128 of K of `b`.
    Block {
        /// `[⌈k/128⌉, m]`.
        a: TensorView,
        /// `[⌈n/128⌉, al(⌈k/128⌉, 4)]`.
        b: TensorView,
    },
}

/// What a library's backend implements; products are known by number.
pub(crate) trait Products: Debug {
    fn name(&self) -> String;
    fn prepare(&self, product: &Product) -> Result<usize>;
    fn run(&self, index: usize) -> Result<()>;
}

/// A vendor's library on one stream.
#[derive(Debug)]
pub struct Library(pub(crate) Box<dyn Products>);

impl Library {
    /// Name and version.
    pub fn name(&self) -> String {
        self.0.name()
    }
    /// Chooses an algorithm for a product; the number to [`Library::run`] it by.
    ///
    /// # Errors
    /// Tensors that do not fit each other, a product the library does not support.
    pub fn prepare(&self, product: &Product) -> Result<usize> {
        self.0.prepare(product)
    }
    /// Enqueues a prepared product on the stream.
    ///
    /// # Errors
    /// An unknown number, the library's and the driver's.
    pub fn run(&self, index: usize) -> Result<()> {
        self.0.run(index)
    }
}
