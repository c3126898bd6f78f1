//! Proofs a kernel needs, proofs that must not exist, and random expressions against random assignments.

use super::*;
use crate::ir::{Builder, IxVarKind, Require, Span, SymId, SymKind};

fn builder() -> Builder {
    Builder::new("k", Span::unknown())
}
fn dim(b: &mut Builder, name: &str, min: i64) -> (SymId, IxId) {
    let sym = Sym { name: name.into(), kind: SymKind::Dim, multiple_of: 1, min, max: i32::MAX as i64 };
    let s = b.sym(sym);
    (s, b.ix_sym(s))
}
fn element(b: &mut Builder, n: i64) -> IxId {
    let (lo, hi) = (b.ix_const(0), b.ix_const(n - 1));
    let v = b.new_ix_var("i", IxVarKind::Element, Some(lo), Some(hi));
    b.ix_var(v)
}
fn done(b: Builder) -> Kernel {
    b.finish().expect("closed")
}

/// `bx * rows + i` on a dim `t`, as every row kernel has it.
fn rows_kernel(divides: bool) -> (Ranges, IxId, IxId, IxId) {
    let mut b = builder();
    let (_, t) = dim(&mut b, "t", 0);
    let rows = b.ix_const(4);
    let grid = b.ix_div_ceil(t, rows);
    let bx = b.grid(&[grid])[0];
    let bx = b.ix_var(bx);
    let i = element(&mut b, 4);
    let r0 = b.ix_mul(bx, rows);
    let r = b.ix_add(r0, i);
    if divides {
        let (left, right) = (b.ix_mod(t, rows), b.ix_const(0));
        b.kernel.requires.push(Require { text: "t % rows == 0".into(), left, relation: Relation::Eq, right });
    }
    (Ranges::new(&done(b)), bx, r, t)
}

#[test]
fn a_block_index_is_below_the_dim_and_a_row_only_if_rows_divide_it() {
    let (r, bx, row, t) = rows_kernel(false);
    assert!(r.prove_lt(bx, t));
    assert!(!r.prove_lt(row, t));
    assert_eq!(r.interval(t).0, Some(1), "a grid that runs is not empty");
    let (r, bx, row, t) = rows_kernel(true);
    assert!(r.prove_lt(bx, t));
    assert!(r.prove_lt(row, t));
    assert_eq!(r.multiple_of(t), 4);
}

#[test]
fn groups_of_a_fixed_row() {
    let mut b = builder();
    let (g, c) = (element(&mut b, 56), element(&mut b, 128));
    let w = b.ix_const(128);
    let gw = b.ix_mul(g, w);
    let col = b.ix_add(gw, c);
    let (h, short) = (b.ix_const(7168), b.ix_const(7167));
    let back = b.ix_div(col, w);
    let lane = b.ix_mod(col, w);
    let r = Ranges::new(&done(b));
    assert!(r.prove_lt(col, h) && !r.prove_lt(col, short));
    assert_eq!(r.interval(col), (Some(0), Some(7167)));
    assert_eq!(r.multiple_of(gw), 128);
    assert!(r.prove_eq(back, g) && r.prove_eq(lane, c));
    assert_eq!(r.affine(col).terms.values().copied().collect::<Vec<_>>(), vec![128, 1]);
}

#[test]
fn quotients_and_remainders() {
    let mut b = builder();
    let (_, n) = dim(&mut b, "n", 0);
    let (_, d) = dim(&mut b, "d", 1);
    let (q, m) = (b.ix_div(n, d), b.ix_mod(n, d));
    let back = b.ix_mul(q, d);
    let sum = b.ix_add(back, m);
    let eight = b.ix_const(8);
    let r8 = b.ix_mod(n, eight);
    let least = b.ix_min(n, d);
    let most = b.ix_max(n, d);
    let zero = b.ix_const(0);
    let r = Ranges::new(&done(b));
    assert!(r.prove_le(back, n) && r.prove_lt(m, d) && r.prove_le(zero, m) && r.prove_eq(sum, n));
    assert!(r.prove_lt(r8, eight) && !r.prove_lt(n, eight));
    assert!(r.prove_le(least, n) && r.prove_le(least, d) && r.prove_le(d, most) && r.prove_le(least, most));
    assert!(!r.prove_le(n, least));
}

#[test]
fn a_loop_over_a_split_stays_inside() {
    let mut b = builder();
    let (_, n) = dim(&mut b, "n", 0);
    let len = b.ix_const(256);
    let grid = b.ix_div_ceil(n, len);
    let bx = b.grid(&[grid])[0];
    let bx = b.ix_var(bx);
    let lo = b.ix_mul(bx, len);
    let next = b.ix_add(lo, len);
    let end = b.ix_min(next, n);
    let one = b.ix_const(1);
    let hi = b.ix_sub(end, one);
    let v = b.new_ix_var("p", IxVarKind::Loop, Some(lo), Some(hi));
    let p = b.ix_var(v);
    let zero = b.ix_const(0);
    let r = Ranges::new(&done(b));
    assert!(r.prove_lt(p, n) && r.prove_le(zero, p) && r.prove_lt(lo, n));
}

#[test]
fn dynamic_tiles_of_a_multiple() {
    // for k in 0..h/128 { k * 128 + c < h } with h a multiple of 128, and without.
    for multiple in [1, 128] {
        let mut b = builder();
        let (s, h) = dim(&mut b, "h", 0);
        b.kernel.syms[s.0 as usize].multiple_of = multiple;
        let w = b.ix_const(128);
        let count = b.ix_div_ceil(h, w);
        let (zero, one) = (b.ix_const(0), b.ix_const(1));
        let last = b.ix_sub(count, one);
        let v = b.new_ix_var("k", IxVarKind::Loop, Some(zero), Some(last));
        let k = b.ix_var(v);
        let c = element(&mut b, 128);
        let base = b.ix_mul(k, w);
        let col = b.ix_add(base, c);
        let r = Ranges::new(&done(b));
        assert_eq!(r.prove_lt(col, h), multiple == 128);
        assert!(r.prove_lt(base, h));
    }
}

#[test]
fn a_symbolic_divisor_from_a_require() {
    let mut b = builder();
    let (_, w) = dim(&mut b, "w", 1);
    let (_, n) = dim(&mut b, "n", 0);
    let (left, zero, one) = (b.ix_mod(n, w), b.ix_const(0), b.ix_const(1));
    b.kernel.requires.push(Require { text: "n % w == 0".into(), left, relation: Relation::Eq, right: zero });
    let groups = b.ix_div(n, w);
    let (glast, wlast) = (b.ix_sub(groups, one), b.ix_sub(w, one));
    let g = b.new_ix_var("g", IxVarKind::Loop, Some(zero), Some(glast));
    let j = b.new_ix_var("j", IxVarKind::Element, Some(zero), Some(wlast));
    let (g, j) = (b.ix_var(g), b.ix_var(j));
    let start = b.ix_mul(g, w);
    let at = b.ix_add(start, j);
    let r = Ranges::new(&done(b));
    assert!(r.prove_lt(at, n));
}

/// A small generator, so that failures repeat.
struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn no_claim_contradicts_an_assignment() {
    let (mut claims, mut samples) = (0, 0);
    for seed in 0..400 {
        let mut rng = Random(seed * 7919 + 1);
        let mut b = builder();
        let mut pool = vec![];
        for c in [0, 1, 2, 3, 4, 8, 12] {
            pool.push(b.ix_const(c));
        }
        for (i, m) in [1, 4].into_iter().enumerate() {
            let sym = Sym { name: format!("s{i}"), kind: SymKind::Dim, multiple_of: m, min: 0, max: 40 };
            let s = b.sym(sym);
            pool.push(b.ix_sym(s));
        }
        if rng.below(3) == 0 {
            let four = b.ix_const(3);
            let (left, right) = (b.ix_mod(pool[7], four), b.ix_const(0));
            b.kernel.requires.push(Require { text: String::new(), left, relation: Relation::Eq, right });
        }
        if rng.below(3) == 0 {
            b.kernel.requires.push(Require {
                text: String::new(),
                left: pool[7],
                relation: Relation::Le,
                right: pool[8],
            });
        }
        let step = |b: &mut Builder, rng: &mut Random, pool: &[IxId]| {
            let x = pool[rng.below(pool.len() as u64) as usize];
            let y = pool[rng.below(pool.len() as u64) as usize];
            let c = b.ix_const(1 + rng.below(9) as i64);
            match rng.below(9) {
                0 => b.ix_add(x, y),
                1 => b.ix_sub(x, y),
                2 => b.ix_mul(x, c),
                3 => b.ix_mul(x, y),
                4 => b.ix_div(x, c),
                5 => b.ix_mod(x, c),
                6 => b.ix_min(x, y),
                7 => b.ix_max(x, y),
                _ => b.ix_div_ceil(x, c),
            }
        };
        for round in 0..4 {
            for _ in 0..4 {
                let e = step(&mut b, &mut rng, &pool);
                pool.push(e);
            }
            let hi = pool[rng.below(pool.len() as u64) as usize];
            let lo = if round == 0 { pool[0] } else { pool[rng.below(pool.len() as u64) as usize] };
            let v = b.new_ix_var("v", IxVarKind::Loop, Some(lo), Some(hi));
            pool.push(b.ix_var(v));
        }
        for _ in 0..6 {
            let e = step(&mut b, &mut rng, &pool);
            pool.push(e);
        }
        let kernel = done(b);
        let ranges = Ranges::new(&kernel);
        let pairs: Vec<(IxId, IxId, bool)> = (0..pool.len())
            .flat_map(|i| (0..pool.len()).map(move |j| (i, j)))
            .map(|(i, j)| (pool[i], pool[j]))
            .filter(|&(x, y)| ranges.prove_le(x, y))
            .map(|(x, y)| (x, y, ranges.prove_lt(x, y)))
            .collect();
        claims += pairs.len();
        for _ in 0..200 {
            let mut vars: Vec<i64> = vec![];
            let syms = [rng.below(41) as i64, rng.below(11) as i64 * 4];
            let value = |vars: &[i64], x: IxId| {
                kernel.eval_ix(x, &|e| match e {
                    IxExpr::Sym(s) => Some(syms[s.0 as usize]),
                    IxExpr::Var(v) => vars.get(v.0 as usize).copied(),
                    _ => None,
                })
            };
            let holds = kernel.requires.iter().all(|r| {
                let (Some(l), Some(h)) = (value(&[], r.left), value(&[], r.right)) else { return false };
                match r.relation {
                    Relation::Eq => l == h,
                    Relation::Le => l <= h,
                    Relation::Lt => l < h,
                }
            });
            if !holds {
                continue;
            }
            let mut alive = true;
            for v in &kernel.ix_vars {
                let (lo, hi) = (value(&vars, v.lo.expect("lo")), value(&vars, v.hi.expect("hi")));
                let (Some(lo), Some(hi)) = (lo, hi) else { panic!("bounds evaluate") };
                if lo > hi {
                    alive = false;
                    break;
                }
                let pick = match rng.below(3) {
                    0 => lo,
                    1 => hi,
                    _ => lo + rng.below((hi - lo + 1) as u64) as i64,
                };
                vars.push(pick);
            }
            if !alive {
                continue;
            }
            samples += 1;
            for &id in &pool {
                let Some(x) = value(&vars, id) else { continue };
                let (lo, hi) = ranges.interval(id);
                assert!(lo.is_none_or(|l| l <= x) && hi.is_none_or(|h| x <= h), "seed {seed} interval of {id:?}");
                let m = ranges.multiple_of(id);
                assert!(if m == 0 { x == 0 } else { x % m == 0 }, "seed {seed} {x} is a multiple of {m}");
                let a = ranges.affine(id);
                let again = a.terms.iter().try_fold(a.constant, |s, (&t, &c)| Some(s + c * value(&vars, t)?));
                assert_eq!(again, Some(x), "seed {seed} affine form of {id:?}");
            }
            for &(x, y, lt) in &pairs {
                let (Some(x), Some(y)) = (value(&vars, x), value(&vars, y)) else { continue };
                assert!(x <= y && (!lt || x < y), "seed {seed}: {x} against {y}, lt {lt}");
            }
        }
    }
    assert!(claims > 10_000 && samples > 5_000, "the test must exercise something: {claims} {samples}");
}
