//! Items of level 0 that whole kernels need: groups of rows, first rows, splits along the reduced axis, clamped indices,
//! split indices, the order in which tiles start, and functions that keep their precision.

#[path = "common/run.rs"]
#[allow(dead_code, reason = "every test crate uses another part")]
mod run;

use dsl::prelude::*;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::target::Target;
use kiln_codegen::tune::Config;
use run::{Given, chain, emitted, ints, noise, run};

fn filled(shape: &[usize], x: f64) -> Given {
    HostTensor::from_f64(Data::F32, shape, &vec![x; shape.iter().product()]).into()
}

#[kernel(dims(k: fixed))]
fn contiguous(a: In![Bf16; m, k], b: In![Bf16; groups, n, k], group: In![I32; m], y: InOut![F32; m, n]) {
    let tiles = Groups::contiguous(group, groups);
    for (g, rows, ni) in tile_loop_grouped(tiles, 16, n.div_ceil(16), Raster::panels(2)) {
        let a_s = shared::<Bf16, 2>([16, 16]);
        let b_s = shared::<Bf16, 2>([16, 16]);
        let acc = frag::<F32, 2>([16, 16]);
        zero(acc);
        for ki in pipeline(0..k.div_ceil(16), 2) {
            copy(a.at((rows.start(), ki * 16)), a_s);
            copy(b.pick(g).at((ni * 16, ki * 16)), b_s);
            gemm(a_s, b_s.t(), acc);
        }
        copy(acc, y.at((rows.start(), ni * 16)));
    }
}

#[test]
fn tiles_of_contiguous_groups_use_their_own_operand() {
    let (m, n, k, groups) = (70, 20, 40, 3);
    // Padding between groups, and a last tile that is not full.
    let group: Vec<i32> = (0..m).map(|r| [2, -1, 0, 0, 1][r / 16]).collect();
    let (a, b) = (noise(Data::Bf16, &[m, k], 1), noise(Data::Bf16, &[groups, n, k], 2));
    let args = [(&a).into(), (&b).into(), ints(&[m], &group).into(), filled(&[m, n], 7.0)];
    let y = run(&*contiguous::kernel(), &Config::default(), &args).remove(3);
    let (a, b) = (a.to_f64(), b.to_f64());
    for i in 0..m {
        for j in 0..n {
            let want = match usize::try_from(group[i]) {
                Ok(g) => f64::from(chain(0.0, 0..k, |p| a[i * k + p], |p| b[(g * n + j) * k + p])),
                Err(_) => 7.0,
            };
            assert_eq!(y[i * n + j], want, "element {i}, {j}");
        }
    }
}

#[kernel(dims(k: fixed))]
fn masked(
    a: In![Bf16; groups, room, k],
    b: In![Bf16; groups, n, k],
    count: In![I32; groups],
    y: InOut![F32; groups, room, n],
) {
    for (g, rows, ni) in tile_loop_grouped(Groups::masked(count, room), 16, n.div_ceil(16), Raster::rows()) {
        let a_s = shared::<Bf16, 2>([16, 16]);
        let b_s = shared::<Bf16, 2>([16, 16]);
        let acc = frag::<F32, 2>([16, 16]);
        zero(acc);
        for ki in pipeline(0..k.div_ceil(16), 2) {
            copy(a.pick(g).first_rows(rows.end()).at((rows.start(), ki * 16)), a_s);
            copy(b.pick(g).at((ni * 16, ki * 16)), b_s);
            gemm(a_s, b_s.t(), acc);
        }
        copy(acc, y.pick(g).first_rows(rows.end()).at((rows.start(), ni * 16)));
    }
}

#[test]
fn masked_groups_write_their_first_rows_only() {
    let (groups, room, n, k) = (4, 37, 20, 24);
    // A full group, none, less than a tile, and a count beyond the room, which is cut.
    let count = [37, 0, 5, 90];
    let (a, b) = (noise(Data::Bf16, &[groups, room, k], 3), noise(Data::Bf16, &[groups, n, k], 4));
    let args = [(&a).into(), (&b).into(), ints(&[groups], &count).into(), filled(&[groups, room, n], 7.0)];
    let y = run(&*masked::kernel(), &Config::default(), &args).remove(3);
    let (a, b) = (a.to_f64(), b.to_f64());
    for g in 0..groups {
        for i in 0..room {
            for j in 0..n {
                let real = (i as i32) < count[g];
                let product = || chain(0.0, 0..k, |p| a[(g * room + i) * k + p], |p| b[(g * n + j) * k + p]);
                let want = if real { f64::from(product()) } else { 7.0 };
                assert_eq!(y[(g * room + i) * n + j], want, "group {g}, element {i}, {j}");
            }
        }
    }
}

/// Config of `partial_product` and `sum_of_parts`.
#[derive(KernelConfig, Clone, Debug)]
pub struct SplitCfg {
    /// Parts the reduced axis is cut into.
    #[numerics]
    #[tune(1, 3, 4)]
    pub k_splits: usize,
}

#[kernel(dims(k: fixed))]
fn partial_product(cfg: &SplitCfg, a: In![Bf16; m, k], b: In![Bf16; n, k], parts: Out![F32; splits, m, n]) {
    let (mi, ni, p) = grid((m.div_ceil(16), n.div_ceil(16), splits));
    let a_s = shared::<Bf16, 2>([16, 16]);
    let b_s = shared::<Bf16, 2>([16, 16]);
    let acc = frag::<F32, 2>([16, 16]);
    zero(acc);
    for ki in pipeline(split_k(0..k.div_ceil(16), cfg.k_splits, 1, p), 2) {
        copy(a.at((mi * 16, ki * 16)), a_s);
        copy(b.at((ni * 16, ki * 16)), b_s);
        gemm(a_s, b_s.t(), acc);
    }
    copy(acc, parts.pick(p).at((mi * 16, ni * 16)));
}

#[kernel]
fn sum_of_parts(cfg: &SplitCfg, parts: In![F32; splits, m, n], y: Out![F32; m, n]) {
    let (mi, ni) = grid((m.div_ceil(16), n.div_ceil(16)));
    let acc = frag::<F32, 2>([16, 16]);
    sum_parts(parts, cfg.k_splits, (mi * 16, ni * 16), acc);
    copy(acc, y.at((mi * 16, ni * 16)));
}

#[test]
fn parts_of_the_reduced_axis_are_summed_in_ascending_order() {
    let (m, n, k) = (20, 18, 112);
    let (a, b) = (noise(Data::Bf16, &[m, k], 5), noise(Data::Bf16, &[n, k], 6));
    let (x, w) = (a.to_f64(), b.to_f64());
    let mut results = vec![];
    for splits in [1, 3, 4] {
        let cfg = SplitCfg { k_splits: splits }.to_config();
        let args = [(&a).into(), (&b).into(), filled(&[splits, m, n], 0.0)];
        let parts = run(&*partial_product::kernel(), &cfg, &args).remove(2);
        let args = [HostTensor::from_f64(Data::F32, &[splits, m, n], &parts).into(), filled(&[m, n], 0.0)];
        let y = run(&*sum_of_parts::kernel(), &cfg, &args).remove(1);
        let each = (k / 16usize).div_ceil(splits) * 16;
        for i in 0..m {
            for j in 0..n {
                let part = |s: usize| {
                    let range = (s * each).min(k)..((s + 1) * each).min(k);
                    chain(0.0, range, |p| x[i * k + p], |p| w[j * k + p])
                };
                let want = (1..splits).fold(part(0), |sum, s| sum + part(s));
                assert_eq!(y[i * n + j], f64::from(want), "{splits} parts, element {i}, {j}");
            }
        }
        results.push(y);
    }
    assert!(results[0] != results[1], "where sums are cut shows in the bits");
    assert!(SplitCfg::space().axes[0].numerics);
}

#[kernel(dims(h: fixed))]
fn fold_rows(x: In![F32; n], y: Out![F32; rows, h]) {
    let b = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        let r = b + i;
        y[(r / h, r % h)] = x[r];
    }
}

#[test]
fn a_quotient_and_a_remainder_name_different_elements() {
    let (rows, h) = (4, 40);
    let x = noise(Data::F32, &[rows * h], 7);
    let args: [Given; 2] = [(&x).into(), filled(&[rows, h], 0.0)];
    let y = run(&*fold_rows::kernel(), &Config::default(), &args).remove(1);
    assert_eq!(y, x.to_f64());
    let facts = |present| kiln_codegen::spec::ParamFacts {
        present,
        align_bytes: 16,
        contiguous: true,
        tma: false,
        stride_multiples: vec![],
    };
    let request = kiln_codegen::spec::BuildRequest {
        fixed: [("h".to_string(), h)].into(),
        facts: vec![facts(true), facts(true)],
        ..Default::default()
    };
    let def = fold_rows::kernel();
    let kernel = def.build(&request).expect("it builds");
    let warnings = kiln_codegen::valid::check(&kernel).expect("it is valid").warnings;
    assert!(warnings.iter().all(|w| w.code != "V0414"), "{warnings:?}");
}

#[kernel]
fn summary(x: In![F32; n], y: Out![F32; 4], at: Out![I32; 2]) {
    let b = grid(1usize);
    // Scalars that one thread stores, several in a row, to tensors and to a tile.
    let t = shared::<F32, 1>([2]);
    t[0] = x[0];
    t[1] = x[1];
    y[b] = t[1];
    y[1] = t[0];
    y[2] = x[2] + t[0];
    y[3] = x[3];
    let inside = (b + 9).clamp_index(0, n - 1);
    at[0] = inside.value();
    at[1] = (b + 2).clamp_index(3, 5).value();
}

#[test]
fn scalars_are_stored_one_after_another() {
    let x = noise(Data::F32, &[6], 8);
    let args: [Given; 3] = [(&x).into(), filled(&[4], 0.0), ints(&[2], &[0, 0]).into()];
    let all = run(&*summary::kernel(), &Config::default(), &args);
    let x = x.to_f64();
    let sum = f64::from(x[2] as f32 + x[0] as f32);
    assert_eq!(all[1], [x[1], x[0], sum, x[3]]);
    assert_eq!(all[2], [5.0, 3.0]);
}

/// Tiles in panels start as the formula says, and each exactly once.
#[test]
fn panels_cover_every_tile_once() {
    let (a, b) = (noise(Data::Bf16, &[70, 40], 1), noise(Data::Bf16, &[3, 20, 40], 2));
    let args = [(&a).into(), (&b).into(), ints(&[70], &[0; 70]).into(), filled(&[70, 20], 7.0)];
    let text = emitted(&*contiguous::kernel(), &Config::default(), &args, Target::Sm80);
    assert!(text.contains("blockIdx.y * gridDim.x + blockIdx.x"), "{text}");
    for (gx, gy, p) in [(1u32, 1u32, 8u32), (5, 3, 2), (7, 4, 7), (7, 4, 16), (9, 1, 4), (3, 5, 1)] {
        let mut seen = vec![0; (gx * gy) as usize];
        let mut order = vec![];
        for place in 0..gx * gy {
            let first = place / (p * gy) * p;
            let rows = if gx - first < p { gx - first } else { p };
            let inside = place - first * gy;
            let (mi, ni) = (first + inside % rows, inside / rows);
            seen[(mi * gy + ni) as usize] += 1;
            order.push((mi / p, ni, mi));
        }
        assert!(seen.iter().all(|&n| n == 1), "{gx} x {gy} in panels of {p}");
        assert!(order.is_sorted(), "{gx} x {gy} in panels of {p}");
    }
}

#[kernel]
fn twelve_bits(x: In![F32; n, 8], words: Out![U32; n, 3], back: Out![F32; n, 8]) {
    let b = grid(n.div_ceil(32)) * 32;
    for i in parallel([32]) {
        let r = b + i;
        let at = |c: usize| x[(r, c)];
        let codes = host!([0, 1, 2, 3, 4, 5, 6, 7].map(|c| e5m6_code(at(c))));
        let packed = e5m6_pack(codes);
        for (k, &word) in unroll(packed.iter().enumerate()) {
            words[(r, k)] = word;
        }
        for (k, &code) in unroll(e5m6_unpack(packed).iter().enumerate()) {
            back[(r, k)] = e5m6_value(code);
        }
    }
}

#[test]
fn e5m6_codes_round_to_nearest_even_and_pack_from_the_top() {
    let step = 2f64.powi(-20);
    let mut values: Vec<f64> = noise(Data::F32, &[8 * 30], 9).to_f64();
    // Every scale, subnormals and their ties, the carry into the first normal number, saturation.
    values.iter_mut().enumerate().for_each(|(i, v)| *v *= 2f64.powi(i as i32 % 40 - 22));
    values.extend([0.0, -0.0, step, -step, 1.5 * step, 2.5 * step, 63.5 * step, 63.4 * step]);
    values.extend([1.0078125, 1.0234375, 65024.0, 65535.0, -1e9, 65023.0, 2f64.powi(-14), 0.5 * step]);
    let x = HostTensor::from_f64(Data::F32, &[values.len() / 8, 8], &values);
    let n = values.len() / 8;
    let args: [Given; 3] = [(&x).into(), HostTensor::zeros(Data::U32, &[n, 3]).into(), filled(&[n, 8], 0.0)];
    let all = run(&*twelve_bits::kernel(), &Config::default(), &args);
    for (row, (x, words)) in x.to_f64().chunks(8).zip(all[1].chunks(3)).enumerate() {
        let mut bits = 0u128;
        for (i, &v) in x.iter().enumerate() {
            let size = v.abs().min(65024.0);
            let exponent = if size > 0.0 { (size.log2().floor() as i32).clamp(-14, 15) } else { -14 };
            let unit = 2f64.powi(exponent - 6);
            let value = (size / unit).round_ties_even() * unit;
            let want = if v.is_sign_negative() { -value } else { value };
            assert_eq!(all[2][row * 8 + i].to_bits(), want.to_bits(), "{v} became {}", all[2][row * 8 + i]);
            let exponent = if value > 0.0 { (value.log2().floor() as i32).clamp(-14, 15) } else { -14 };
            let steps = (value / 2f64.powi(exponent - 6)) as u128;
            let code = if steps < 64 { steps } else { (exponent + 15) as u128 * 64 + steps - 64 };
            bits = bits << 12 | code | u128::from(v.is_sign_negative()) << 11;
        }
        let want: Vec<f64> = [64, 32, 0].map(|s| f64::from((bits >> s) as u32)).to_vec();
        assert_eq!(words, want, "row {row}");
    }
}

#[kernel]
fn precise(x: In![F32; n], e: Out![F32; n], l: Out![F32; n], s: Out![F32; n]) {
    let b = grid(n.div_ceil(64)) * 64;
    for i in parallel([64]) {
        e[b + i] = exp_precise(x[b + i]);
        l[b + i] = log_precise(abs(x[b + i]));
        s[b + i] = softplus(x[b + i]);
    }
}

/// Distance from the true value in units in its last place.
fn places(got: f64, want: f64) -> f64 {
    let unit = f64::from(f32::next_up(want.abs() as f32)) - f64::from(want.abs() as f32);
    (got - want).abs() / unit
}

#[test]
fn precise_functions_stay_within_their_places() {
    let mut x: Vec<f32> = (-880..=880).map(|i| i as f32 * 0.1).collect();
    // Where digits get lost: near 1 for the logarithm, near 0 and far out for the others.
    x.extend((1..200).flat_map(|i| [1.0 + i as f32 * 6e-8, 1.0 - i as f32 * 6e-8, i as f32 * 1e-9, i as f32 * -0.37]));
    x.extend([
        0.5,
        2.0,
        f32::MIN_POSITIVE,
        std::f32::consts::FRAC_1_SQRT_2,
        std::f32::consts::FRAC_1_SQRT_2.next_up(),
        1e-20,
        87.9,
    ]);
    x.retain(|x| *x != 0.0);
    let n = x.len();
    let given = HostTensor::from_f64(Data::F32, &[n], &x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    let args: [Given; 4] = [(&given).into(), filled(&[n], 0.0), filled(&[n], 0.0), filled(&[n], 0.0)];
    let got = run(&*precise::kernel(), &Config::default(), &args);
    for (i, x) in x.iter().map(|&x| f64::from(x)).enumerate() {
        let e = x.exp();
        if e > 1.2e-38 {
            assert!(places(got[1][i], e) <= 2.0, "e^{x}: {} instead of {e}", got[1][i]);
        }
        if x.abs() < 3e38 && x.abs() > 1.2e-38 && x.abs() != 1.0 {
            assert!(
                places(got[2][i], x.abs().ln()) <= 2.0,
                "ln {}: {} instead of {}",
                x.abs(),
                got[2][i],
                x.abs().ln()
            );
        }
        let s = if x > 30.0 { x + (-x).exp() } else { x.exp().ln_1p() };
        if s > 1.2e-38 {
            assert!(places(got[3][i], s) <= 2.5, "softplus {x}: {} instead of {s}", got[3][i]);
        }
    }
}

#[test]
fn the_exponential_keeps_zero_infinity_and_nan() {
    let x = [f64::NEG_INFINITY, -1e30, -200.0, 200.0, 1e30, f64::INFINITY, f64::NAN, 0.0];
    let given = HostTensor::from_f64(Data::F32, &[8], &x);
    let args: [Given; 4] = [(&given).into(), filled(&[8], 0.0), filled(&[8], 0.0), filled(&[8], 0.0)];
    let got = run(&*precise::kernel(), &Config::default(), &args).remove(1);
    assert_eq!(got[..6], [0.0, 0.0, 0.0, f64::INFINITY, f64::INFINITY, f64::INFINITY]);
    assert!(got[6].is_nan() && got[7] == 1.0, "{got:?}");
}
