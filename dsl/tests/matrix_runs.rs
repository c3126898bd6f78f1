//! Matrix products, looked-up rows and top-k, run by the VM: the bits the language promises.

mod common;

use dsl::prelude::*;
use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::KernelDef;
use kiln_codegen::{bind, compile, vm};
use std::sync::Arc;

/// Launches with the default config, plainly and sanitized; gives the arguments' values afterwards.
#[track_caller]
fn run(def: &dyn KernelDef, args: &[HostTensor]) -> Vec<Vec<f64>> {
    let mut result: Option<Vec<Vec<f64>>> = None;
    for sanitize in [false, true] {
        let views: Vec<TensorView> = args
            .iter()
            .map(|t| TensorView::contiguous(t.dtype, &t.shape, Arc::new(HostMemory::from_bytes(&t.data))))
            .collect();
        let given: Vec<Arg> = views.iter().cloned().map(Arg::Tensor).collect();
        let bound = bind::bind(def, &def.space().default_config(), &given).unwrap_or_else(|e| panic!("{e}"));
        let built = match compile::build(def, &bound.request) {
            Ok(b) => b,
            Err(all) => panic!("{}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        };
        let syms = bind::sym_values(&built.kernel, &bound.dims, &given);
        let options = vm::Options { sanitize, ..vm::Options::default() };
        let report = match vm::run(&built.kernel, &built.facts, &syms, &given, &options) {
            Ok(r) => r,
            Err(all) => panic!("{}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        };
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
        let values: Vec<Vec<f64>> = views
            .iter()
            .map(|v| {
                let data = v.memory.host().expect("host memory").to_bytes();
                HostTensor { dtype: v.dtype, shape: v.shape.clone(), data }.to_f64()
            })
            .collect();
        if let Some(first) = &result {
            let bits = |all: &[Vec<f64>]| -> Vec<u64> { all.iter().flatten().map(|x| x.to_bits()).collect() };
            assert_eq!(bits(first), bits(&values), "the sanitized run gives other bits");
        }
        result = Some(values);
    }
    result.expect("two runs")
}

/// Numbers that look random, in `-2..2`, rounded to `dtype`.
fn noise(dtype: Data, shape: &[usize], seed: u64) -> HostTensor {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f64 / (1u64 << 22) as f64 - 2.0
        })
        .collect();
    HostTensor::from_f64(dtype, shape, &values)
}

/// One chain of fused multiply-adds in ascending `k`.
fn chain(from: f32, k: usize, a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64) -> f32 {
    (0..k).fold(from, |acc, p| (a(p) as f32).mul_add(b(p) as f32, acc))
}

#[kernel(dims(k: fixed))]
fn product(a: In![Bf16; m, k], b: In![Bf16; n, k], y: Out![F32; m, n]) {
    for (mi, ni) in tile_loop((m.div_ceil(16), n.div_ceil(8)), Raster::panels(2)) {
        let a_s = shared::<Bf16, 2>([16, 24]);
        let b_s = shared::<Bf16, 2>([8, 24]);
        let acc = frag::<F32, 2>([16, 8]);
        zero(acc);
        for ki in pipeline(0..k.div_ceil(24), 2) {
            copy(a.at((mi * 16, ki * 24)), a_s);
            copy(b.at((ni * 8, ki * 24)), b_s);
            // Two halves in order are the whole.
            gemm(a_s.cols(0, 16), b_s.cols(0, 16).t(), acc);
            gemm(a_s.cols(16, 24), b_s.t().reshape_rows(16, 24), acc);
        }
        copy(acc, y.at((mi * 16, ni * 8)));
    }
}

/// Rows `a..b` of a transposed tile, by way of its columns.
trait ReshapeRows {
    fn reshape_rows(self, a: usize, b: usize) -> Self;
}
impl<S: Space> ReshapeRows for Tile<Bf16, S, 2> {
    #[track_caller]
    fn reshape_rows(self, a: usize, b: usize) -> Self {
        self.t().cols(a, b).t()
    }
}

#[test]
fn a_product_is_one_chain_an_element() {
    let (m, n, k) = (37, 13, 50);
    let (a, b) = (noise(Data::Bf16, &[m, k], 1), noise(Data::Bf16, &[n, k], 2));
    let y = run(&*product::kernel(), &[a.clone(), b.clone(), HostTensor::zeros(Data::F32, &[m, n])]).remove(2);
    let (a, b) = (a.to_f64(), b.to_f64());
    for i in 0..m {
        for j in 0..n {
            let want = chain(0.0, k, |p| a[i * k + p], |p| b[j * k + p]);
            assert_eq!(y[i * n + j], want as f64, "element {i}, {j}");
        }
    }
}

/// Config of `partial`.
#[derive(KernelConfig, Clone, Debug)]
pub struct SplitCfg {
    /// Steps of a split.
    #[numerics]
    #[default(2)]
    pub split: usize,
}

#[kernel(dims(k: fixed))]
fn partial(cfg: &SplitCfg, a: In![F16; m, k], b: In![F16; n, k], y: Out![F32; splits, m, n]) {
    let (mi, ni, sp) = grid((m.div_ceil(16), n.div_ceil(8), splits));
    let a_s = shared::<F16, 2>([16, 16]);
    let b_s = shared::<F16, 2>([8, 16]);
    let acc = frag::<F32, 2>([16, 8]);
    zero(acc);
    for ki in pipeline(part(0..k.div_ceil(16), cfg.split, sp), 2) {
        copy(a.at((mi * 16, ki * 16)), a_s);
        copy(b.at((ni * 8, ki * 16)), b_s);
        gemm(a_s, b_s.t(), acc);
    }
    copy(acc, y.pick(sp).at((mi * 16, ni * 8)));
}

#[test]
fn a_split_sums_its_own_steps() {
    let (m, n, k, splits) = (5, 9, 80, 4);
    let (a, b) = (noise(Data::F16, &[m, k], 8), noise(Data::F16, &[n, k], 9));
    let args = [a.clone(), b.clone(), HostTensor::zeros(Data::F32, &[splits, m, n])];
    let y = run(&*partial::kernel(), &args).remove(2);
    let (a, b) = (a.to_f64(), b.to_f64());
    for s in 0..splits {
        let (lo, hi) = ((s * 32).min(k), (s * 32 + 32).min(k));
        for i in 0..m {
            for j in 0..n {
                let want = chain(0.0, hi - lo, |p| a[i * k + lo + p], |p| b[j * k + lo + p]);
                assert_eq!(y[(s * m + i) * n + j], want as f64, "element {i}, {j} of split {s}");
            }
        }
    }
}

#[kernel(dims(k: fixed), require(k % 32 == 0))]
fn scaled(
    a: In![E4m3; m, k],
    sa: In![F32; k / 32, m],
    b: In![E2m1; n, k],
    sb: In![E8m0; n, k / 32],
    y: Out![F32; m, n],
) {
    for (mi, ni) in tile_loop((m.div_ceil(16), n.div_ceil(16)), Raster::rows()) {
        let a_s = shared::<E4m3, 2>([16, 32]);
        let b_s = shared::<E2m1, 2>([16, 32]);
        let sa_s = shared::<F32, 1>([16]);
        let acc = frag::<F32, 2>([16, 16]);
        zero(acc);
        for ki in pipeline(0..k / 32, 3) {
            copy(a.at((mi * 16, ki * 32)), a_s);
            copy(b.at((ni * 16, ki * 32)), b_s);
            copy(sa.pick(ki).at(mi * 16), sa_s);
            gemm_scaled((a_s, |i: Ix| sa_s[i]), (b_s.t(), |j: Ix| sb[(ni * 16 + j, ki)].to::<F32>()), acc);
        }
        copy(acc, y.at((mi * 16, ni * 16)));
    }
}

#[test]
fn a_scaled_product_adds_each_chain_with_one_rounding() {
    let (m, n, k) = (19, 21, 96);
    let (a, b) = (noise(Data::E4m3, &[m, k], 3), noise(Data::E2m1, &[n, k], 4));
    let sa = noise(Data::F32, &[k / 32, m], 5);
    let exponents: Vec<f64> = (0..n * k / 32).map(|x| 2f64.powi(x as i32 % 5 - 2)).collect();
    let sb = HostTensor::from_f64(Data::E8m0, &[n, k / 32], &exponents);
    let args = [a.clone(), sa.clone(), b.clone(), sb.clone(), HostTensor::zeros(Data::F32, &[m, n])];
    let y = run(&*scaled::kernel(), &args).remove(4);
    let (a, sa, b, sb) = (a.to_f64(), sa.to_f64(), b.to_f64(), sb.to_f64());
    for i in 0..m {
        for j in 0..n {
            let mut want = 0f32;
            for g in 0..k / 32 {
                let part = chain(0.0, 32, |p| a[i * k + g * 32 + p], |p| b[j * k + g * 32 + p]);
                want = (sa[g * m + i] as f32 * sb[j * (k / 32) + g] as f32).mul_add(part, want);
            }
            assert_eq!(y[i * n + j], want as f64, "element {i}, {j}");
        }
    }
}

#[kernel]
fn pick_rows(x: In![F32; n, 4], ids: In![I32; t], y: Out![F32; t, 4], known: Out![I32; t], back: InOut![F32; n, 4]) {
    let first = grid(t.div_ceil(8)) * 8;
    let at = shared::<I32, 1>([8]);
    let rows = frag::<F32, 2>([8, 4]);
    fill(at, -1);
    for i in parallel([8]) {
        at[i] = ids.get_or(first + i, -1);
    }
    copy(x.rows(at), rows);
    copy(rows, y.at((first, 0)));
    for i in parallel([8]) {
        known[first + i] = select(x.has_row(at[i]), 1, 0);
    }
    copy(rows, back.rows(at));
}

#[test]
fn rows_are_read_and_written_where_a_table_says() {
    let ids = [3.0, -1.0, 0.0, 6.0, 7.0, 1.0, 100.0, 2.0, 5.0, 4.0];
    let x = noise(Data::F32, &[7, 4], 6);
    let t = HostTensor::from_f64(Data::I32, &[10], &ids);
    let zeros = |dtype, shape: &[usize]| HostTensor::zeros(dtype, shape);
    let args = [x.clone(), t, zeros(Data::F32, &[10, 4]), zeros(Data::I32, &[10]), zeros(Data::F32, &[7, 4])];
    let out = run(&*pick_rows::kernel(), &args);
    let x = x.to_f64();
    for (i, &id) in ids.iter().enumerate() {
        let inside = (0.0..7.0).contains(&id);
        assert_eq!(out[3][i], inside as u8 as f64);
        for j in 0..4 {
            assert_eq!(out[2][i * 4 + j], if inside { x[id as usize * 4 + j] } else { 0.0 });
        }
    }
    assert_eq!(out[4], x, "every row was named once");
}

#[kernel(dims(page: fixed))]
fn paged_rows(
    cache: In![Bf16; pages, page, 8],
    table: In![I32; b, slots],
    lens: In![I32; b],
    y: Out![F32; b, 64, 8],
    known: Out![I32; b, 64],
) {
    let bi = grid(b);
    let rows = cache.paged(table.pick(bi), page);
    let t = frag::<F32, 2>([64, 8]);
    copy_cast(rows.at((0, 0)), t);
    let len = lens[bi].clamp_index(0, slots * page);
    for (i, j) in parallel([64, 8]) {
        y[(bi, i, j)] = select(i < len, t[(i, j)], 0.0);
    }
    for i in parallel([64]) {
        known[(bi, i)] = select(rows.has_row(i), 1, 0);
    }
}

#[test]
fn pages_are_looked_up_and_missing_ones_read_as_zero() {
    let (pages, page) = (5usize, 16usize);
    let tables = [4.0, 0.0, 2.0, 1.0, 9.0, -3.0];
    let cache = noise(Data::Bf16, &[pages, page, 8], 7);
    let args = [
        cache.clone(),
        HostTensor::from_f64(Data::I32, &[2, 3], &tables),
        HostTensor::from_f64(Data::I32, &[2], &[40.0, 64.0]),
        HostTensor::zeros(Data::F32, &[2, 64, 8]),
        HostTensor::zeros(Data::I32, &[2, 64]),
    ];
    let out = run(&*paged_rows::kernel(), &args);
    let cache = cache.to_f64();
    for b in 0..2 {
        for i in 0..64 {
            let entry = if i / page < 3 { tables[b * 3 + i / page] } else { -1.0 };
            let there = (0.0..pages as f64).contains(&entry);
            assert_eq!(out[4][b * 64 + i], there as u8 as f64, "row {i} of {b}");
            for j in 0..8 {
                let read = there && i < [40, 64][b];
                let want = if read { cache[(entry as usize * page + i % page) * 8 + j] } else { 0.0 };
                assert_eq!(out[3][(b * 64 + i) * 8 + j], want, "element {i}, {j} of {b}");
            }
        }
    }
}

#[kernel(dims(n: fixed, k: fixed))]
fn best(x: In![F32; t, n], values: Out![F32; t, k], places: Out![I32; t, k]) {
    let ti = grid(t);
    let row = frag::<F32, 1>([n]);
    copy(x.pick(ti), row);
    let (v, p) = topk_small(row, k);
    copy(v, values.pick(ti));
    copy(p, places.pick(ti));
}

#[test]
fn the_smaller_index_wins_a_tie() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let x = [1.0, 3.0, 3.0, -2.0, nan, 0.5, -inf, -inf, -inf, nan, nan, -inf];
    let args = [
        HostTensor::from_f64(Data::F32, &[2, 6], &x),
        HostTensor::zeros(Data::F32, &[2, 5]),
        HostTensor::zeros(Data::I32, &[2, 5]),
    ];
    let out = run(&*best::kernel(), &args);
    assert_eq!(out[2], [1.0, 2.0, 0.0, 5.0, 3.0, 0.0, 1.0, 2.0, 5.0, -1.0]);
    assert_eq!(out[1], [3.0, 3.0, 1.0, 0.5, -2.0, -inf, -inf, -inf, -inf, -inf]);
}
