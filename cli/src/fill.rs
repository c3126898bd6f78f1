//! Fills the inputs of a case, the same on every machine: an own generator seeded by names, exact arithmetic only.
//!
//! Golden cases bring their own data; this is for declared cases and benches.

use kiln_codegen::formats;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{Case, Fill, InputSpec};
use std::collections::BTreeMap;

/// SplitMix64 (Steele, Lea and Flood 2014): small, seedable by any number, good enough for test data.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose stream depends on the text only.
    pub fn new(seed: &str) -> Self {
        // FNV-1a.
        Random(seed.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3)))
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * 2f64.powi(-53)
    }
    /// Nearly normal with deviation 1: the sum of twelve uniform numbers. Only additions, so that every machine and
    /// math library gives the same numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// Above this many elements the data repeats. The period is odd, so that rows of the usual sizes differ.
const PERIOD: usize = (1 << 20) + 7;

/// One tensor.
pub fn tensor(spec: &InputSpec, seed: &str) -> HostTensor {
    let (dtype, n) = (spec.tensor.dtype, spec.tensor.shape.iter().product::<usize>());
    let mut random = Random::new(&format!("{seed}/{}", spec.tensor.name));
    let mut out = HostTensor::zeros(dtype, &spec.tensor.shape);
    let distinct = match &spec.fill {
        Fill::Values(v) => v.len().min(n),
        Fill::Constant(_) => n.min(2),
        Fill::Normal(_) | Fill::Uniform(..) | Fill::Bits => n.min(PERIOD),
    };
    for i in 0..distinct {
        let bits = match &spec.fill {
            Fill::Normal(deviation) => formats::encode_f64(dtype, random.normal() * deviation),
            Fill::Uniform(lo, hi) => {
                let x = lo + random.unit() * (hi - lo);
                formats::encode_f64(dtype, if dtype.is_float() { x } else { x.floor() })
            }
            Fill::Bits if dtype == DType::Bool => random.bits() & 1,
            Fill::Bits => random.bits() & (u64::MAX >> (64 - dtype.bits())),
            Fill::Constant(x) => formats::encode_f64(dtype, *x),
            Fill::Values(v) => formats::encode_f64(dtype, v[i]),
        };
        formats::store_bits(&mut out.data, dtype, i, bits);
    }
    if distinct > 0 {
        repeat(&mut out, distinct);
    }
    out
}

/// Copies the first `period` elements until the tensor is full.
fn repeat(t: &mut HostTensor, period: usize) {
    let n = t.num_elements();
    if t.dtype.bits() >= 8 {
        let (filled, total) = (t.dtype.bytes(period), t.data.len());
        let mut at = filled;
        while at < total {
            // The whole prefix so far is a multiple of the period, so it can be doubled.
            let take = at.min(total - at);
            t.data.copy_within(..take, at);
            at += take;
        }
    } else {
        for i in period..n {
            let bits = formats::load_bits(&t.data, t.dtype, i - period);
            formats::store_bits(&mut t.data, t.dtype, i, bits);
        }
    }
}

/// All inputs of a case, by name.
pub fn inputs(op: &str, case: &Case) -> BTreeMap<String, HostTensor> {
    let seed = format!("{op}/{}", case.id);
    case.inputs.iter().map(|i| (i.tensor.name.clone(), tensor(i, &seed))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_codegen::spec::TensorSpec;

    fn make(dtype: DType, shape: &[usize], fill: Fill) -> HostTensor {
        tensor(&InputSpec { tensor: TensorSpec { name: "x".into(), dtype, shape: shape.to_vec() }, fill }, "seed")
    }

    #[test]
    fn data_depends_on_the_seed_only() {
        let a = make(DType::F32, &[100], Fill::Normal(2.0));
        assert_eq!(a, make(DType::F32, &[100], Fill::Normal(2.0)));
        let values = a.to_f64();
        let mean = values.iter().sum::<f64>() / 100.0;
        let deviation = (values.iter().map(|x| x * x).sum::<f64>() / 100.0 - mean * mean).sqrt();
        assert!(mean.abs() < 0.8 && (1.4..2.6).contains(&deviation), "{mean} {deviation}");
        // The first number of the stream: any change of the generator shows here.
        assert_eq!(Random::new("").bits(), Random::new("").bits());
        assert_ne!(Random::new("a").bits(), Random::new("b").bits());
    }

    #[test]
    fn each_fill_keeps_its_promise() {
        let ints = make(DType::I32, &[1000], Fill::Uniform(-2.0, 3.0)).to_f64();
        assert!(ints.iter().all(|&x| (-2.0..=2.0).contains(&x) && x.fract() == 0.0));
        assert!((-2..=2).all(|k| ints.contains(&(k as f64))));
        assert!(make(DType::Bf16, &[5], Fill::Constant(1.5)).to_f64().iter().all(|&x| x == 1.5));
        assert_eq!(make(DType::F32, &[2, 2], Fill::Values(vec![1.0, 2.0])).to_f64(), [1.0, 2.0, 1.0, 2.0]);
        assert!(make(DType::Bool, &[64], Fill::Bits).data.iter().all(|&b| b < 2));
        assert!(make(DType::F32, &[0, 3], Fill::Normal(1.0)).data.is_empty());
    }

    #[test]
    fn large_tensors_repeat() {
        let t = make(DType::U8, &[3 * PERIOD + 5], Fill::Bits);
        assert_eq!(t.data[..PERIOD], t.data[PERIOD..2 * PERIOD]);
        assert_eq!(t.data[..PERIOD], t.data[2 * PERIOD..3 * PERIOD]);
        assert_eq!(t.data[..5], t.data[3 * PERIOD..]);
        let half = make(DType::E2m1, &[PERIOD + 9], Fill::Bits);
        assert_eq!(half.bits(PERIOD + 8), half.bits(8));
    }
}
