//! Every construct of the kernel language, in small kernels that build: optional parameters, strides, packed records,
//! `if` in all positions, loops, host variables, logic, closures, generics.

mod common;

use common::{build, count, nested, request};
use dsl::prelude::*;
use kiln_codegen::ir::{IfResult, IxExpr, Op, ParamKind, SymKind};
use kiln_codegen::spec::ParamFacts;

/// How a test kernel works.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// One way.
    Plain,
    /// Another.
    Wide,
}

/// Config of the test kernels.
#[derive(KernelConfig, Clone, Debug)]
pub struct Cfg {
    /// Rows a block.
    #[tune(4, 8)]
    pub rows: usize,
    /// A switch.
    pub flag: bool,
    /// A word.
    #[numerics]
    #[tune(Mode::Plain, Mode::Wide)]
    pub mode: Mode,
}

const WIDTHS: [usize; 3] = [2, 3, 16];

#[kernel(dims(k: fixed), batch_invariant(m))]
fn optional(
    cfg: &Cfg,
    x: In![Bf16; m, k; strides(ld, 1)],
    bias: Option<In![F32; k]>,
    extra: Option<In![Bf16; pages, k; strides(_, 1)]>,
    alpha: Option<Scalar![F32]>,
    y: Out![Bf16; m, k],
) {
    let r0 = grid(m.div_ceil(cfg.rows)) * cfg.rows;
    for (i, j) in parallel([cfg.rows, k]) {
        let v = x[(r0 + i, j)].to::<F32>();
        let v = if let Some(b) = bias { v + b[j] } else { v };
        let v = match alpha {
            Some(a) if cfg.flag || cfg.mode == Mode::Plain => v * a,
            _ => v,
        };
        y[(r0 + i, j)] = v.to::<Bf16>();
    }
    if let Some(e) = extra
        && cfg.rows < 8
    {
        for p in 0..pages {
            let mut s = 0.0f32;
            for j in 0..k {
                s += e[(p, j)].to::<F32>();
            }
            y[(p, 0)] = s.to::<Bf16>();
        }
    } else if cfg.rows > 100 {
        y[(0, 0)] = V::<Bf16>::of(1.0);
    }
    let Some(b) = bias else { return_early() };
    for j in parallel([k]) {
        y[(ld, j)] = b[j].to::<Bf16>();
    }
}
fn return_early() -> ! {
    panic!("this kernel needs a bias")
}

#[test]
fn optional_parameters_and_strides() {
    let def = optional::kernel();
    let k = build(&*def, &[("k", 64)]);
    assert_eq!(k.params.len(), 5);
    let ParamKind::Tensor { strides, .. } = &k.params[0].kind else { panic!("x is a tensor") };
    assert!(matches!(k.ix_expr(strides[0]), IxExpr::Sym(s) if k.syms[s.0 as usize].name == "ld"));
    assert_eq!(k.ix_const(strides[1]), Some(1));

    let mut r = request(&*def, &[("k", 64)]);
    r.facts[2] = ParamFacts { contiguous: false, stride_multiples: vec![8, 0], ..r.facts[2].clone() };
    let k = common::built(def.build(&r));
    let stride = k.syms.iter().find(|s| s.name == "extra.stride0").expect("a symbol for the free stride");
    assert_eq!((stride.kind.clone(), stride.multiple_of), (SymKind::Stride { param: 2, axis: 0 }, 8));

    r.facts[1].present = false;
    let errors = def.build(&r).expect_err("the kernel panics without a bias");
    assert_eq!(errors[0].code, "B0101");
    assert!(errors[0].message.contains("this kernel needs a bias"), "{}", errors[0]);
    assert!(errors[0].span.file.ends_with("language.rs"), "{}", errors[0]);
}

#[kernel(require(record % 4 == 0))]
fn packed(bytes: In![U8; blocks, record], out: Out![F32; blocks, n]) {
    let b = grid(blocks);
    let vals = bytes.view_as::<E4m3, 3>(0, (blocks, 64, 512), (record, 576, 1));
    let scales = bytes.view_as::<F32, 3>(512, (blocks, 64, 4), (record, 576, 4));
    for j in parallel([512]) {
        out[(b, j)] = vals[(b, 0, j)].to::<F32>() * scales[(b, 0, j / 128)];
    }
}

#[test]
fn packed_records() {
    let k = build(&*packed::kernel(), &[]);
    assert_eq!(k.syms.iter().find(|s| s.name == "record").map(|s| s.multiple_of), Some(4));
    assert_eq!(k.requires.len(), 1);
    assert_eq!(k.requires[0].text, "record % 4 == 0");
    let scales = k.views.iter().find(|v| v.strides.len() == 3 && k.ix_const(v.strides[1]) == Some(144));
    assert!(scales.is_some(), "byte strides are counted in elements");
}

#[kernel]
fn ifs(cfg: &Cfg, x: In![F32; n], y: Out![F32; n], z: Out![I32; n]) {
    let i = grid(n);
    let a = x[i];
    let y1 = if a > 0.0 { a } else { -a };
    let y2 = if cfg.flag { a } else { -a };
    let y3 = if cfg.flag && a > 1.0 {
        1.0
    } else if a > 0.0 {
        a * 2.0
    } else {
        if cfg.flag { a } else { lit(0.0) }
    };
    let (lo, hi) = if a < 2.0 { (i, 4usize) } else { (i + 1, 8usize) };
    y[i] = max(if a > 3.0 { a } else { 3.0 }, y1) + if y2 > y3 { y2 } else { y3 };
    let n_host = if cfg.flag { 3 } else { 4 };
    let t = frag::<F32, 1>([n_host]);
    let op = if cfg.rows == 1 { "one" } else { "many" };
    let b = pick_abs(a);
    if a > 0.0 {
        y[lo] = 1.0;
    } else if cfg.flag {
        y[hi] = b;
    }
    if a == 0.0 {
        zero(t)
    } else {
        fill(t, 1.0)
    }
    let p = if cfg.rows > 99 { panic!("too many rows with {op}") } else { a };
    y[i] = p;
    z[i] = if a > 0.0 { 1 } else { 0 };
}

#[kernel_fn]
fn pick_abs(a: V<F32>) -> V<F32> {
    if a > 0.0 { a } else { -a }
}

#[test]
fn if_is_a_statement_and_an_expression() {
    let k = build(&*ifs::kernel(), &[]);
    assert!(count(&k, "if") >= 9);
    let joins: Vec<_> =
        k.ops.iter().filter_map(|o| if let Op::If { results, .. } = &o.op { Some(results) } else { None }).collect();
    assert!(joins.iter().any(|r| r.len() == 2 && r.iter().all(|x| matches!(x, IfResult::Index { .. }))));
    let inlined = k.spans.iter().find(|s| !s.frames.is_empty()).expect("an op of pick_abs");
    assert_eq!(&*inlined.frames[0].function, "pick_abs");
    let mut all = vec![];
    nested(&k, k.body, &mut all);
    assert_eq!(all.len(), k.ops.len(), "every op is in the tree");
}

#[kernel]
fn loops(cfg: &Cfg, x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let mut s = 0.0f32;
    let mut pos = i;
    while pos < n && s < 100.0 {
        s += x[pos];
        if s == 7.0 {
            pos += 2;
            continue;
        }
        if s > 50.0 {
            if cfg.flag {
                s -= 1.0;
            } else {
                s -= 2.0;
            }
            break;
        }
        pos += 1;
    }
    loop {
        s *= 0.5;
        if s < 1.0 {
            break;
        }
    }
    for j in 0..n {
        if x[j] > s {
            break;
        }
        for u in unroll(0..8) {
            if u == cfg.rows {
                break;
            }
            if x[j] > 2.0 {
                s += 1.0;
            }
            for w in first(u) {
                if x[w] > s {
                    continue;
                }
                s += x[w];
            }
        }
    }
    y[i] = s;
}
#[track_caller]
fn first(u: usize) -> Rng {
    range(0, u + 1)
}

#[test]
fn loops_and_jumps() {
    let k = build(&*loops::kernel(), &[]);
    assert_eq!(count(&k, "loop"), 2);
    assert_eq!(count(&k, "for"), 1 + 4, "one device loop, and one in each of the four unrolled bodies");
    assert_eq!(count(&k, "continue"), 1 + 4);
    assert_eq!(count(&k, "index_var"), 1);
}

#[kernel]
fn host_loops(x: In![F32; n], y: Out![F32; n]) {
    let i = grid(n);
    let mut tiles = host!(Vec::new());
    let mut total = host!(0usize);
    for &w in unroll(WIDTHS.iter()) {
        tiles.push(frag::<F32, 1>([w]));
        total += w;
    }
    for (k, (t, w)) in unroll(tiles.iter().zip(&WIDTHS).enumerate()) {
        if k + 1 < WIDTHS[k] {
            fill(*t, k as f32);
        }
        if *w > 2 && x[i] > 1.0 {
            zero(*t);
        }
    }
    for (a, b) in unroll([(0usize, 1u32), (2, 3)]) {
        y[i + a] = b as f32;
    }
    let big = frag::<F32, 1>([total]);
    fill(big, 0.5);
    for r in unroll((0..4).rev().step_by(2)) {
        y[i + r] = 1.0;
    }
    let mut hv = host!(vec![0usize; 4]);
    for k in unroll(0..4) {
        hv[k] = k;
        hv[k] += 1;
    }
    y[i + hv[2]] = 2.0;
}

#[test]
fn host_loops_and_variables() {
    let k = build(&*host_loops::kernel(), &[]);
    assert_eq!(count(&k, "alloc"), 4);
    let big = k.buffers.iter().find(|b| b.name == "big").expect("named after its `let`");
    assert_eq!(big.extents, [21]);
}

#[kernel]
fn logic(cfg: &Cfg, x: In![F32; n], k: In![U32; n], y: Out![F32; n]) {
    let i = grid(n);
    let mut v = x[i];
    let u = k[i];
    let c = v > 0.0 && cfg.flag;
    let d = cfg.flag && !(v > 1.0) || u == 3 && !c;
    let e = !cfg.flag || i < 3;
    let f = cfg.rows > 9 && WIDTHS[cfg.rows - 9] > 0;
    let f2 = cfg.rows > 9 && x[WIDTHS[cfg.rows - 9]] > 0.0;
    let m = -v;
    let w = !u & 0xff;
    if !d {
        v = -v * 2.0;
    }
    v += h_scale(cfg.rows) * (cfg.rows as f32);
    let s = State { v, w };
    y[i] = select(e, s.v, m);
    if f {
        y[i] = s.w.to::<F32>();
    }
    if f2 {
        y[i] = 1.0 / v;
    }
}
fn h_scale(r: usize) -> f32 {
    1.0 / r as f32
}
struct State {
    v: V<F32>,
    w: V<U32>,
}

#[test]
fn logic_and_operators() {
    build(&*logic::kernel(), &[]);
}

#[kernel]
fn capture(sb: In![F32; n, g], gsum: Option<In![F32; n]>, y: Out![F32; n, g]) {
    let ni = grid(n);
    let sa = shared::<F32, 1>([64]);
    zero(sa);
    let acc = frag::<F32, 2>([64, 64]);
    zero(acc);
    let mut f = 1.0f32;
    for ki in 0..g {
        let top = tile_max([64], |i| sa[i] * f);
        let sum = tile_sum([64], |j: Ix| if let Some(w) = gsum { sb[(ni + j, ki)] * w[j] } else { sb[(ni + j, ki)] });
        {
            let f = f * 2.0;
            fill(acc, f);
            let g = |f: V<F32>| f + 1.0;
            fill(acc, g(f));
        }
        f = f * 0.5;
        match gsum {
            Some(f) => fill(acc, f[ni]),
            None => {}
        }
        f += 1.0;
        y[(ni, ki)] = top + sum + f;
    }
}

#[test]
fn closures_capture_and_names_shadow() {
    let k = build(&*capture::kernel(), &[]);
    assert_eq!(count(&k, "var"), 1);
    assert_eq!(count(&k, "reduce_region"), 2);
}

trait Quant: Float {
    const GROUP: usize;
    fn shrink(x: V<F32>) -> V<F32>;
}
impl Quant for E4m3 {
    const GROUP: usize = 128;
    #[kernel_fn]
    fn shrink(x: V<F32>) -> V<F32> {
        if x > Self::MAX { x * 0.5 } else { x }
    }
}

#[kernel(dims(h: fixed))]
fn generic<T: Quant, const N: usize>(x: In![Bf16; t, h], y: Out![T; t, h])
where
    T: Copy,
{
    let r = grid(t);
    let part = frag::<F32, 2>([N, h / N]);
    zero(part);
    let lim = T::MAX * 0.5;
    for j in parallel([h]) {
        let v = T::shrink(x[(r, j)].to::<F32>()) * (1.0 / T::MAX);
        y[(r, j)] = clip::<T, N>(v, lim).to::<T>();
    }
    for _ in unroll(0..h / T::GROUP) {
        if N > 2 {
            zero(part);
        }
    }
}
#[kernel_fn]
fn clip<T: Float, const N: usize>(v: V<F32>, lim: f32) -> V<F32> {
    let mut r = v;
    for _ in unroll(0..N) {
        if r > lim {
            r = r * T::MAX;
        }
    }
    max(r, 0.0)
}

#[test]
fn generic_kernels() {
    let def = generic::kernel::<E4m3, 4>();
    assert_eq!(def.info().name, "generic_4");
    assert_eq!(def.info().dtypes, [("T".to_string(), kiln_codegen::ir::DType::E4m3)]);
    let k = build(&*def, &[("h", 256)]);
    assert_eq!(count(&k, "fill"), 3);
}

#[kernel]
fn typed_var(x: In![Bf16; n], y: Out![I32; n]) {
    let i = grid(n);
    let mut best: V<I32> = -1;
    let mut top: V<Bf16> = x[i];
    let mut at: Ix = 0;
    if x[i] > top {
        top = x[i];
        best = i.value();
        at = i + 1;
    }
    y[at] = best;
}

#[test]
fn typed_variables() {
    let k = build(&*typed_var::kernel(), &[]);
    assert_eq!((count(&k, "var"), count(&k, "index_var")), (2, 1));
}

#[kernel]
fn if_places(cfg: &Cfg, x: In![F32; n], y: Out![Bf16; n]) {
    let i = grid(n);
    let a = x[i];
    y[if a > 0.0 { i } else { i + 1 }] = (if a > 1.0 { a } else { -a }).to::<Bf16>();
    let t = frag::<F32, 1>([4]);
    zero(t);
    let u = map(t, |v| if v > 0.0 { v } else { 0.0 });
    for j in parallel([4]) {
        t[j] = if t[j] > 1.0 { t[j] } else { u[j] };
        if t[j] > 2.0 {
            t[j] += 1.0
        }
        let mut acc = 0.0f32;
        for q in 0..4 {
            if q < j {
                acc += t[q];
            }
        }
        t[j] = acc;
    }
    let z = match cfg.rows {
        1 => {
            if a > 0.0 {
                a
            } else {
                1.0
            }
        }
        _ => a,
    };
    let sc = Scale { by: z };
    y[i] = sc.apply(a).to::<Bf16>();
}
struct Scale {
    by: V<F32>,
}
impl Scale {
    #[kernel_fn]
    fn apply(&self, a: V<F32>) -> V<F32> {
        if a > 0.0 { a * self.by } else { Self::nothing() }
    }
    fn nothing() -> V<F32> {
        lit(0.0)
    }
}

#[test]
fn if_in_every_position() {
    build(&*if_places::kernel(), &[]);
}

#[kernel]
fn untyped(cfg: &Cfg, y: Out![F32; n]) {
    grid(n);
    for k in unroll((0..4).rev()) {
        if k == 0 {
            y[0] = 1.0;
        }
        if cfg.flag && k > 1 {
            y[1] = 2.0;
        }
    }
    for k in unroll(0..4) {
        let z = if k == 0 { 1u32 } else { k as u32 };
        y[z as usize] = 3.0;
    }
}

#[test]
fn untyped_literals_stay_host_values() {
    let k = build(&*untyped::kernel(), &[]);
    assert_eq!(count(&k, "if"), 0);
    assert_eq!(count(&k, "store"), 1 + 4);
}
