//! The kernels of lesson 3 against references: they run on the VM, plainly and sanitized, and print for every target.

// Lessons name the facade; here the language is there under that name.
extern crate dsl as kiln;

#[path = "common/run.rs"]
#[allow(dead_code, reason = "every test crate uses another part")]
mod run;
#[path = "../../examples/03_kernels/kernels.rs"]
mod texts;

use dsl::prelude::*;
use dsl::schedule::{Axis, Evict, Instr, Order, Sched};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType as Data;
use kiln_codegen::spec::KernelDef;
use kiln_codegen::target::Target;
use run::{Given, chain, ints, noise, run, run_for};

fn empty(dtype: Data, shape: &[usize]) -> Given {
    HostTensor::zeros(dtype, shape).into()
}

#[test]
fn fp8_gemm_promotes_one_chain_a_scale_group() {
    let (m, n, k) = (37, 160, 256);
    let (a, b) = (noise(Data::E4m3, &[m, k], 1), noise(Data::E4m3, &[n, k], 2));
    let (sa, sb) = (noise(Data::F32, &[k / 128, m], 3), noise(Data::F32, &[n.div_ceil(128), k / 128], 4));
    let cfg = texts::GemmCfg { bm: 64, bn: 64, bk: 128, stages: 3, panel: 8 };
    let args = [(&a).into(), (&sa).into(), (&b).into(), (&sb).into(), empty(Data::F32, &[m, n])];
    let out = run(&*texts::fp8_gemm_1d2d::kernel::<F32>(), &cfg.to_config(), &args).remove(4);
    let (a, b, sa, sb) = (a.to_f64(), b.to_f64(), sa.to_f64(), sb.to_f64());
    for i in 0..m {
        for j in 0..n {
            let want = (0..k / 128).fold(0.0f32, |acc, g| {
                let part = chain(0.0, g * 128..(g + 1) * 128, |p| a[i * k + p], |p| b[j * k + p]);
                let factor = sa[g * m + i] as f32 * sb[j / 128 * (k / 128) + g] as f32;
                factor.mul_add(part, acc)
            });
            assert_eq!(out[i * n + j], f64::from(want), "element {i}, {j}");
        }
    }
}

#[test]
fn rmsnorm_divides_by_the_root_mean_square() {
    let (t, h) = (5, 104);
    let (x, w) = (noise(Data::F32, &[t, h], 5), noise(Data::F32, &[h], 6));
    let cfg = texts::RmsCfg { rows: 2, warps: 4 };
    let args = [(&x).into(), (&w).into(), empty(Data::F32, &[t, h]), 1e-6.into()];
    let y = run(&*texts::rmsnorm::kernel::<F32>(), &cfg.to_config(), &args).remove(2);
    let (x, w) = (x.to_f64(), w.to_f64());
    for (row, got) in x.chunks(h).zip(y.chunks(h)) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / h as f64;
        for (j, (v, got)) in row.iter().zip(got).enumerate() {
            let want = v / (mean + 1e-6).sqrt() * w[j];
            // Some dozen roundings of f32, 2^-24 each.
            assert!((got - want).abs() <= 2e-6 * want.abs().max(1e-3), "{got} instead of {want}");
        }
    }
}

/// Splits with a kernel, combines, and compares with plain attention.
fn paged_attention(def: &dyn KernelDef, [dk, dv]: [usize; 2], cfg: &texts::MlaCfg, page: usize, targets: &[Target]) {
    let (batch, heads, pages, most) = (3, 5, 12, 4);
    let q = noise(Data::Bf16, &[batch, heads, dk], 7);
    let kv = noise(Data::Bf16, &[pages, page, dk], 8);
    let table: Vec<i32> = vec![7, 2, 9, 0, 3, 11, 5, 1, 4, 8, 6, 10];
    // Several tokens of the last page, one split only, no token at all.
    let lens = [3 * page as i32 + 9, page as i32 + 4, 0];
    let scale = 0.11f64;
    let splits = (most * page).div_ceil(cfg.split_tokens);
    let (tables, lengths) = (ints(&[batch, most], &table), ints(&[batch], &lens));
    let scale_log2 = (scale * std::f64::consts::LOG2_E) as f32;
    let args = [
        (&q).into(),
        (&kv).into(),
        (&tables).into(),
        (&lengths).into(),
        empty(Data::F32, &[batch, splits, heads, dv]),
        empty(Data::F32, &[batch, splits, heads]),
        scale_log2.into(),
    ];
    let split = run_for(def, &cfg.to_config(), &args, targets);
    let part = HostTensor::from_f64(Data::F32, &[batch, splits, heads, dv], &split[4]);
    let lse = HostTensor::from_f64(Data::F32, &[batch, splits, heads], &split[5]);
    let args = [part.into(), lse.into(), (&lengths).into(), empty(Data::Bf16, &[batch, heads, dv])];
    let out = run(&*texts::mla_combine::kernel(), &cfg.to_config(), &args).remove(3);
    let (q, kv) = (q.to_f64(), kv.to_f64());
    for b in 0..batch {
        for h in 0..heads {
            let row = |p: usize| &kv[(table[b * most + p / page] as usize * page + p % page) * dk..][..dk];
            let scores: Vec<f64> = (0..lens[b] as usize)
                .map(|p| scale * row(p).iter().zip(&q[(b * heads + h) * dk..][..dk]).map(|(x, y)| x * y).sum::<f64>())
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for d in 0..dv {
                let value = scores.iter().enumerate().map(|(p, s)| (s - top).exp() * row(p)[d]).sum::<f64>();
                let want = if lens[b] == 0 { 0.0 } else { value / sum };
                let got = out[(b * heads + h) * dv + d];
                // Weights and result are rounded to bf16, 2^-9 each of values below 2.
                assert!((got - want).abs() <= 2.0 * 2.0 / 512.0, "{b} {h} {d}: {got} instead of {want}");
            }
        }
    }
}

#[test]
fn paged_attention_splits_and_combines() {
    let cfg = texts::MlaCfg { bh: 64, bn: 16, split_tokens: 32, stages: 2 };
    let all: Vec<Target> = Target::ALL.into_iter().filter(|t| t.caps().is_some()).collect();
    paged_attention(&*texts::mla_decode_split::kernel(), [48, 32], &cfg, 16, &all);
}

/// The same attention by three roles: rings, mailboxes and products that go on.
#[test]
fn paged_attention_with_roles() {
    let cfg = texts::MlaCfg { bh: 64, bn: 16, split_tokens: 32, stages: 2 };
    paged_attention(&*texts::mla_decode_split_sm90::kernel(), [48, 32], &cfg, 16, &[]);
    // More tiles a split than the ring has slots.
    let cfg = texts::MlaCfg { split_tokens: 64, ..cfg };
    paged_attention(&*texts::mla_decode_split_sm90::kernel(), [48, 32], &cfg, 16, &[]);
    // Rows of whole panels, which the matrix unit of a warp group takes.
    let cfg = texts::MlaCfg { bh: 64, bn: 64, split_tokens: 128, stages: 2 };
    paged_attention(&*texts::mla_decode_split_sm90::kernel(), [192, 128], &cfg, 64, &[Target::Sm90a]);
}

#[test]
fn indexer_logits_weigh_relu_of_heads() {
    let (t, heads, d, s) = (5, 4, 32, 300);
    let (q, k) = (noise(Data::E4m3, &[t, heads, d], 9), noise(Data::E4m3, &[s, d], 10));
    let (scales, w) = (noise(Data::F32, &[s], 11), noise(Data::F32, &[t, heads], 12));
    // One query of each block sees all keys, so every logit is written.
    let (first, last) = ([0, 10, 0, 50, 0], [300, 200, 300, 100, 300]);
    let cfg = texts::IndexerCfg { bq: 2, bn: 64, stages: 2 };
    let args = [
        (&q).into(),
        (&k).into(),
        (&scales).into(),
        (&w).into(),
        ints(&[t], &first).into(),
        ints(&[t], &last).into(),
        empty(Data::F32, &[t, s]),
    ];
    let out = run(&*texts::indexer_logits::kernel(), &cfg.to_config(), &args).remove(6);
    let (q, k, scales, w) = (q.to_f64(), k.to_f64(), scales.to_f64(), w.to_f64());
    for i in 0..t {
        for p in 0..s {
            let got = out[i * s + p];
            if (p as i32) < first[i] || p as i32 >= last[i] {
                assert_eq!(got, f64::NEG_INFINITY, "{i}, {p} is masked");
                continue;
            }
            let want: f64 = (0..heads)
                .map(|h| {
                    let dot: f64 = (0..d).map(|c| q[(i * heads + h) * d + c] * k[p * d + c]).sum();
                    dot.max(0.0) * w[i * heads + h]
                })
                .sum::<f64>()
                * scales[p];
            // Sums of some dozen terms below 128 in f32.
            assert!((got - want).abs() <= 1e-3, "{i}, {p}: {got} instead of {want}");
        }
    }
}

#[test]
fn topk_is_exact_and_ordered() {
    let (rows, n, topk) = (4, 500, 32);
    let mut scores = noise(Data::F32, &[rows, n], 13).to_f64();
    // Ties at the threshold: coarse steps, and one row of equal scores.
    scores.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
    scores[2 * n..3 * n].fill(1.25);
    let (first, last) = ([0, 100, 7, 20], [500, 460, 500, 31]);
    let scores = HostTensor::from_f64(Data::F32, &[rows, n], &scores);
    let cfg = texts::TopkCfg { chunk: 1024, warps: 8 };
    let args =
        [(&scores).into(), ints(&[rows], &first).into(), ints(&[rows], &last).into(), empty(Data::I32, &[rows, topk])];
    let out = run(&*texts::radix_topk::kernel(), &cfg.to_config(), &args).remove(3);
    let scores = scores.to_f64();
    for r in 0..rows {
        let row = &scores[r * n..][..n];
        let range: Vec<usize> = (first[r] as usize..last[r] as usize).collect();
        let mut sorted: Vec<f64> = range.iter().map(|&i| row[i]).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let want = topk.min(range.len());
        let threshold = sorted[want - 1];
        let mut places: Vec<i64> = range.iter().filter(|&&i| row[i] > threshold).map(|&i| i as i64).collect();
        let equal = range.iter().filter(|&&i| row[i] == threshold).map(|&i| i as i64);
        places.extend(equal.take(want - places.len()));
        places.resize(topk, -1);
        let got: Vec<i64> = out[r * topk..][..topk].iter().map(|&x| x as i64).collect();
        assert_eq!(got, places, "row {r}");
    }
}

// --- written schedules ---

#[derive(KernelConfig, Clone, Debug)]
struct Placed {
    #[tune(1, 2)]
    groups: usize,
    #[tune(2, 1)]
    cluster: usize,
}

/// `out = a b^T`.
#[kernel(dims(n: fixed, k: fixed))]
fn placed(cfg: &Placed, a: In![Bf16; m, k], b: In![Bf16; n, k], out: Out![Bf16; m, n]) {
    let bm = 64 * cfg.groups;
    for (mi, ni) in tile_loop((m.div_ceil(bm), n.div_ceil(64)), Raster::panels(2)) {
        let a_s = shared::<Bf16, 2>([bm, 64]);
        let b_s = shared::<Bf16, 2>([64, 64]);
        let acc = frag::<F32, 2>([bm, 64]);
        zero(acc);
        for ki in pipeline(0..k / 64, 3) {
            #[label(load_a)]
            copy(a.at((mi * bm, ki * 64)), a_s);
            #[label(load_b)]
            copy(b.at((ni * 64, ki * 64)), b_s);
            #[label(mma)]
            gemm(a_s, b_s.t(), acc);
        }
        #[label(store)]
        for (i, j) in parallel([bm, 64]) {
            out[(mi * bm + i, ni * 64 + j)] = acc[(i, j)].to::<Bf16>();
        }
    }
}

#[schedule(for = placed, target = Sm90a)]
fn placed_sm90(s: &mut Sched, cfg: &Placed) {
    s.role("load").registers(40).issue_from_one_thread();
    s.role("math").warps(4 * cfg.groups).registers(232);
    s.persistent("tiles", Order::StaticStride);
    s.cluster(1, cfg.cluster);
    if cfg.cluster > 1 {
        s.multicast("load_b", Axis::M);
    }
    s.ring("ab").buffers(["a_s", "b_s"]).depth(3).from("load").to("math");
    s.place("load", ["load_a", "load_b"]);
    s.place("math", ["mma"]);
    s.instr("mma", Instr::Wgmma { split: Axis::M, groups: cfg.groups });
    s.instr("load_a", Instr::Tma { swizzle: 128, evict: Evict::Normal });
}

#[schedule(for = placed, target = Sm90a)]
fn placed_wrongly(s: &mut Sched, _cfg: &Placed) {
    s.role("load").registers(40).issue_from_one_thread();
    s.role("math").registers(232);
    s.persistent("tiles", Order::StaticStride);
    s.ring("ab").buffers(["a_s", "b_s"]).depth(3).from("load").to("math");
    s.place("load", ["load_a", "load_c"]);
    s.stagger("load", "math");
}

/// A schedule beside a kernel is followed, gives the bits of the plain kernel, and one that does not fit is refused with a
/// warning.
#[test]
fn written_schedules_are_followed_or_refused() {
    use kiln_codegen::{bind, compile, vm};
    let plain = placed::kernel();
    let (m, n, k) = (200, 136, 256);
    let (a, b) = (noise(Data::Bf16, &[m, k], 1), noise(Data::Bf16, &[n, k], 2));
    for groups in [1, 2] {
        for cluster in [1, 2] {
            let config = Placed { groups, cluster }.to_config();
            let args = run::place(&[(&a).into(), (&b).into(), HostTensor::zeros(Data::Bf16, &[m, n]).into()]);
            let def = placed_sm90::attach(plain.clone());
            let bound = bind::bind(&*def, &config, &args).unwrap_or_else(|e| panic!("{e}"));
            let built = compile::build(&*def, &bound.request).unwrap_or_else(|e| panic!("{e:?}"));
            let (s, scheduled, facts) = compile::scheduled(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((s.roles[1].instances, s.rings[0].depth), (groups, 3));
            assert_eq!(scheduled.cluster.as_ref().map(|c| c.size), (cluster > 1).then_some(cluster));
            let syms = bind::sym_values(&built.kernel, &bound.dims, &args);
            let forms = [(&built.kernel, &built.facts), (&scheduled, &facts)];
            let ways = vm::roles::Schedule::series(4);
            let report = vm::roles::run_checked(forms, &syms, &args, &ways).unwrap_or_else(|e| panic!("{e:?}"));
            let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
    }
    let def = placed_wrongly::attach(plain);
    let args = run::place(&[(&a).into(), (&b).into(), HostTensor::zeros(Data::Bf16, &[m, n]).into()]);
    let bound =
        bind::bind(&*def, &Placed { groups: 1, cluster: 1 }.to_config(), &args).unwrap_or_else(|e| panic!("{e}"));
    let built = compile::build(&*def, &bound.request).unwrap_or_else(|e| panic!("{e:?}"));
    let lowered = compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{e:?}"));
    let reason = lowered.schedule.expect_err("it cannot be followed");
    assert!(reason.contains("stagger"), "{reason}");
    let warning = lowered.facts.warnings.iter().find(|w| w.code == "V0550").expect("a warning");
    assert!(warning.message.contains("written schedule for sm_90a is rejected"), "{}", warning.message);
}

#[kernel]
fn doubled(x: In![F32; n], y: Out![F32; n]) {
    let block = grid(n.div_ceil(128));
    for i in parallel([128]) {
        y[block * 128 + i] = x[block * 128 + i] * 2.0;
    }
}

#[kernel]
fn doubled_by_a_role(x: In![F32; n], y: Out![F32; n]) {
    let block = grid(n.div_ceil(128));
    let sums = ring::<F32, 1>([128], 2);
    roles(|r| {
        r.group("double", 1).registers(128).run(|| {
            let slot = sums.acquire();
            let sum = slot.tile();
            for i in parallel([128]) {
                sum[i] = x[block * 128 + i] * 2.0;
            }
            slot.publish();
        });
        r.group("write", 1).registers(128).run(|| {
            let taken = sums.take();
            let sum = taken.tile();
            for i in parallel([128]) {
                y[block * 128 + i] = sum[i];
            }
            taken.release();
        });
    });
}

#[kernel]
fn doubled_in_another_grid(x: In![F32; n], y: Out![F32; n]) {
    let (block, _) = grid((n.div_ceil(128), 1));
    for i in parallel([128]) {
        y[block * 128 + i] = x[block * 128 + i] * 2.0;
    }
}

/// A form is used on its target alone; one that cannot be placed there, or is another kernel, is refused with a warning and
/// leaves the kernel what it was.
#[test]
fn forms_of_a_target_are_used_or_refused() {
    use kiln_codegen::compile::{build, source};
    use kiln_codegen::schedule::attach_form;
    use kiln_codegen::spec::BuildRequest;
    let text = |form: std::sync::Arc<dyn KernelDef>, target| {
        let built = build(&*attach_form(doubled::kernel(), Target::Sm90a, form), &BuildRequest::default());
        let lowered = source(&built.unwrap_or_else(|e| panic!("{e:?}")), target).unwrap_or_else(|e| panic!("{e:?}"));
        let refused = lowered.facts.warnings.iter().find(|w| w.code == "V0550").map(|w| w.message.clone());
        (lowered.kernel.roles.len(), refused)
    };
    assert_eq!(text(doubled_by_a_role::kernel(), Target::Sm90a), (2, None));
    assert_eq!(text(doubled_by_a_role::kernel(), Target::Sm80), (0, None));
    let (roles, refused) = text(doubled_in_another_grid::kernel(), Target::Sm90a);
    assert_eq!(roles, 0);
    let refused = refused.expect("a warning");
    assert!(refused.contains("the form of `doubled` for sm_90a is rejected"), "{refused}");
    assert!(refused.contains("another grid than `doubled`"), "{refused}");
    // The same grid, without roles or a schedule that could be placed.
    let (roles, refused) = text(doubled::kernel(), Target::Sm90a);
    assert!(roles == 0 && refused.is_some(), "{refused:?}");
}
