//! The roundings of the published code of V4 and V4.1, in f32 arithmetic: quantised by the library's casts, then decoded.
//!
//! Casts are operators; decoding and the joining of rounded and plain channels are the host's, as for weights. Without rounding
//! every function gives its argument. Not here: products on the codes themselves. Source: DeepSeek-V4 and V4.1 reports; OCP
//! Microscaling Formats 1.0.

use super::{Operators, int, reshaped};
use crate::checkpoint::shard::e2m1;
use crate::error::Result;
use kiln_codegen::abi::TensorView;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::ParamValue;

/// What is rounded on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Nothing: f32 throughout.
    Exact,
    /// What the published code of V4 and V4.1 rounds, in f32 arithmetic: inputs of products with narrow weights, keys, entries,
    /// index queries and index keys.
    Published(Rounding),
}

/// Formats of the published roundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Inputs e4m3 in groups of 128; keys and entries e4m3 in groups of 64 but for rotated channels; index operands e2m1 in
    /// groups of 32 after a Hadamard transform.
    V4,
    /// Inputs and keys e4m3 in groups of 32; entries e2m1 in groups of 16 with scales of e4m3; index operands e2m1 in groups of 32.
    V41,
}

impl Operators {
    /// As [`Operators::linear`] for weights that are stored narrow: with published numerics the input is rounded first.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn narrow(&self, x: &TensorView, w: &TensorView) -> Result<TensorView> {
        self.linear(&self.narrow_input(x)?, w)
    }

    /// The input of a product with narrow weights.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn narrow_input(&self, x: &TensorView) -> Result<TensorView> {
        match self.numerics {
            Numerics::Exact => Ok(x.clone()),
            Numerics::Published(Rounding::V4) => self.e4m3(x, 128),
            Numerics::Published(Rounding::V41) => self.e4m3(x, 32),
        }
    }

    /// Keys of the window, `[t, d]`, of which the last `turned` channels are rotated.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn key(&self, x: &TensorView, turned: usize) -> Result<TensorView> {
        match self.numerics {
            Numerics::Exact => Ok(x.clone()),
            Numerics::Published(Rounding::V4) => {
                let (rows, d) = (x.shape[0], x.shape[1]);
                let whole = self.download(x)?;
                let flat: Vec<f32> = whole.chunks(d).flat_map(|r| r[..d - turned].to_vec()).collect();
                let rounded = self.download(&self.e4m3(&self.upload(&[rows, d - turned], &flat)?, 64)?)?;
                let parts = rounded.chunks(d - turned).zip(whole.chunks(d));
                let joined: Vec<f32> = parts.flat_map(|(a, b)| [a, &b[d - turned..]].concat()).collect();
                self.upload(&[rows, d], &joined)
            }
            Numerics::Published(Rounding::V41) => self.e4m3(x, 32),
        }
    }

    /// Compressed entries, as [`Operators::key`].
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn entry(&self, x: &TensorView, turned: usize) -> Result<TensorView> {
        match self.numerics {
            Numerics::Published(Rounding::V41) => self.e2m1_fine(x),
            Numerics::Exact | Numerics::Published(Rounding::V4) => self.key(x, turned),
        }
    }

    /// Index queries or keys, `[.., d]`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn index_operand(&self, x: &TensorView) -> Result<TensorView> {
        match self.numerics {
            Numerics::Exact => Ok(x.clone()),
            Numerics::Published(Rounding::V4) => self.e2m1(&self.one("hadamard", &[("x", x)], &[], "y")?),
            Numerics::Published(Rounding::V41) => self.e2m1(x),
        }
    }

    /// Rows of the last axis.
    fn flat_rows(x: &TensorView) -> TensorView {
        let columns = x.shape.last().copied().unwrap_or(1);
        reshaped(x, &[x.num_elements() / columns.max(1), columns])
    }

    /// Rounded to e4m3 with a power of two for each group; codes are decoded on the host, like weights.
    fn e4m3(&self, x: &TensorView, group: usize) -> Result<TensorView> {
        let flat = Self::flat_rows(x);
        let params = [
            ("block", ParamValue::List(vec![ParamValue::Int(1), int(group)])),
            ("ue8m0", ParamValue::Bool(true)),
            ("amax_min", ParamValue::Float(1e-4)),
        ];
        let out = self.call("quant_per_token_fp8", &[("x", &flat)], &[], &params)?;
        self.stream.synchronize()?;
        let codes = self.device.download(&out["q"])?.to_f64();
        let scales = self.download(&out["sf"])?;
        let (columns, groups) = (flat.shape[1], flat.shape[1].div_ceil(group));
        let value = |(i, c): (usize, f64)| c as f32 * scales[i / columns * groups + i % columns / group];
        self.upload(&x.shape, &codes.into_iter().enumerate().map(value).collect::<Vec<_>>())
    }

    /// Rounded to e2m1 with a power of two for 32 columns.
    fn e2m1(&self, x: &TensorView) -> Result<TensorView> {
        const GROUP: usize = 32;
        let flat = Self::flat_rows(x);
        let params = [("gran_k", int(GROUP))];
        let out = self.call("quant_per_token_fp4", &[("x", &flat)], &[], &params)?;
        let codes = self.download_integers(&out["q_packed"])?;
        let scales = self.download_integers(&out["sf_exp"])?;
        let (columns, groups) = (flat.shape[1], flat.shape[1].div_ceil(GROUP));
        let value = |i: usize| {
            let code = (codes[i / 2] >> (i % 2 * 4)) as u8 & 15;
            let power = scales[i / columns * groups + i % columns / GROUP] - 127;
            e2m1(code) * (power as f32).exp2()
        };
        self.upload(&x.shape, &(0..flat.num_elements()).map(value).collect::<Vec<_>>())
    }

    /// Rounded to e2m1 with a scale of e4m3 for 16 columns. No operator of the library has such scales, so the host does it.
    fn e2m1_fine(&self, x: &TensorView) -> Result<TensorView> {
        const GROUP: usize = 16;
        let values = self.download(x)?;
        let scale = |group: &[f32]| {
            let largest = group.iter().fold(6.0 * 2.0f32.powi(-9), |a, x| a.max(x.abs()));
            HostTensor::from_f64(DType::E4m3, &[1], &[f64::from(largest / 6.0)]).to_f64()[0] as f32
        };
        let round = |group: &[f32]| {
            let s = scale(group);
            let shares: Vec<f64> = group.iter().map(|x| f64::from((x / s).clamp(-6.0, 6.0))).collect();
            let codes = HostTensor::from_f64(DType::E2m1, &[shares.len()], &shares);
            codes.to_f64().into_iter().map(move |c| c as f32 * s).collect::<Vec<_>>()
        };
        self.upload(&x.shape, &values.chunks(GROUP).flat_map(round).collect::<Vec<_>>())
    }
}
