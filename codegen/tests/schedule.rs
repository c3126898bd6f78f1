//! Schedules applied to plain kernels: what comes out verifies, reads back as text, and is refused with a reason where it
//! does not fit.

use kiln_codegen::compile;
use kiln_codegen::ir::{parse, print};
use kiln_codegen::schedule::{Options, apply, automatic};
use kiln_codegen::target::Target;
use kiln_codegen::valid;

const GEMM: &str = include_str!("sched/gemm_fp8_plain.ir");

fn scheduled(text: &str, o: &Options) -> Result<String, String> {
    let kernel = parse::kernel(text).unwrap_or_else(|e| panic!("{e:?}"));
    let built = compile::check(kernel).unwrap_or_else(|e| panic!("{e:?}"));
    let caps = Target::Sm90a.caps().ok_or("no limits")?;
    let s = automatic(&built.kernel, &caps, o)?;
    let k = apply(&built.kernel, &s, &caps)?;
    valid::check(&k).map_err(|e| format!("{e:?}\n{}", print::text(&k)))?;
    let text = print::text(&k);
    let again = parse::kernel(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    assert_eq!(text, print::text(&again));
    Ok(format!("{s}\n{text}"))
}

#[test]
fn a_product_gets_roles_and_a_ring() {
    let text = scheduled(GEMM, &Options { stages: 4, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"));
    for part in ["s.role(\"load\", 4)", "acquire 0", "take 0", "wgmma", "tma_store map", "row_scales"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let shared = Options { stages: 3, cluster: 2, ..Options::default() };
    let text = scheduled(GEMM, &shared).unwrap_or_else(|e| panic!("{e}"));
    assert!(text.contains("multicast") && text.contains("cluster_barrier"), "{text}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let too_many = Options { stages: 9, ..Options::default() };
    let reason = scheduled(GEMM, &too_many).expect_err("9 slots do not fit");
    assert!(reason.contains("shared memory"), "{reason}");
    let odd = GEMM.replace("strides [lda, 1] align 16", "strides [lda, 1] align 8");
    let reason = scheduled(&odd, &Options::default()).expect_err("8 bytes are too few");
    assert!(reason.contains("aligned to 8 bytes"), "{reason}");
    let groups = Options { groups: 3, ..Options::default() };
    let reason = scheduled(GEMM, &groups).expect_err("three groups do not share 128 rows");
    assert!(reason.contains("3 warp groups"), "{reason}");
}

/// Two products of a step, of which only the second has row scales that can be copied: each keeps its own factor.
#[test]
fn copied_row_scales_stay_with_their_product() {
    let (start, end) = (GEMM.find("      gemm ").expect("a product"), GEMM.find("    parallel (i.1").expect("a store"));
    let second = &GEMM[start..end];
    let first = "      gemm $a_s.1, $b_s.1 -> @acc rows (i.2 in 128) {\n        %5: f32 = const f32 2.0\n      } yield %5 \
                 cols (j.2 in 128) {\n        %6: f32 = const f32 1.0\n      } yield %6\n";
    let text = format!("{}{first}{second}{}", &GEMM[..start], &GEMM[end..]);
    let out = scheduled(&text, &Options { stages: 3, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"));
    let products: Vec<&str> = out.split("wgmma ").skip(1).collect();
    assert_eq!(products.len(), 2, "{out}");
    assert!(products[0].contains("const f32 2.0") && !products[0].contains("load $row_scales"), "{out}");
    assert!(products[1].contains("load $row_scales"), "{out}");
}

/// Every role that reads memory waits for the kernel before, since none reads through another one alone.
#[test]
fn all_roles_of_a_dependent_kernel_wait() {
    let built = compile::check(parse::kernel(GEMM).expect("a kernel")).expect("a correct one");
    let caps = Target::Sm90a.caps().expect("limits");
    let mut s = automatic(&built.kernel, &caps, &Options { stages: 3, ..Options::default() }).expect("a schedule");
    s.dependent = true;
    let text = print::text(&apply(&built.kernel, &s, &caps).expect("it fits"));
    assert_eq!(text.matches("grid_wait").count(), 2, "{text}");
}

/// The product with its sum in parts, each over all of K.
fn in_parts(count: usize) -> String {
    let add = "      parallel (x in 128, y in 128) {\n        %7: f32 = load $sum[x, y]\n        %8: f32 = load $acc[x, y]\n        \
               %9: f32 = add %7, %8\n        store $sum[x, y] = %9\n      }\n    }\n";
    let loops = format!(
        "    alloc @sum: frag f32[128, 128]\n    view $sum = @sum: f32[128, 128] strides [128, 1]\n    fill $sum = %0\n    \
                         for part in 0..{count} {{\n      fill $acc = %0\n"
    );
    GEMM.replace("    fill $acc = %0\n", &loops)
        .replace("    parallel (i.1 in 128", &format!("{add}    parallel (i.1 in 128"))
        .replace("load $acc[i.1, j.1]", "load $sum[i.1, j.1]")
}

#[test]
fn parts_of_a_sum_become_warp_groups_and_blocks() {
    let options = Options { stages: 2, groups: 2, turns: 1, ..Options::default() };
    let text = scheduled(&in_parts(2), &options).unwrap_or_else(|e| panic!("{e}"));
    for part in ["cluster 2 axis none", "combine @acc", "turns 1", "cluster_barrier"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    // Warp groups of 128 rows take turns, so that a group's accumulators leave room for no third part.
    let options = Options { stages: 4, groups: 1, turns: 2, ..Options::default() };
    let reason = scheduled(&in_parts(2), &options).expect_err("the parts do not fit beside the ring");
    assert!(reason.contains("shared memory"), "{reason}");
    // Two warp groups would wait for the same slot in turn, whose parity does not tell the first fill from the second.
    let reason = scheduled(&in_parts(2), &Options { stages: 3, ..options }).expect_err("an odd number of slots");
    assert!(reason.contains("do not divide the 3 slots"), "{reason}");
    let reason = scheduled(&in_parts(3), &Options { turns: 2, ..options }).expect_err("3 parts");
    assert!(reason.contains("do not divide the 3 parts"), "{reason}");
    let other = in_parts(2).replace("%9: f32 = add %7, %8", "%9: f32 = mul %7, %8");
    let reason = scheduled(&other, &options).expect_err("a product of parts is no sum");
    assert!(reason.contains("not added to the total"), "{reason}");
}

/// The product of the first rows of groups, which only the device counts.
fn masked() -> String {
    let inside = GEMM.find("    alloc @a_s").expect("a tile");
    let end = GEMM.rfind("  }\n}").expect("an end");
    let count = "    view $count = count: i32[g] strides [1]\n    %10: i32 = load $count[bz]\n    index rows = clamp_index %10, 0, m\n    \
                 %11: bool = compare_index lt bx * 128, rows\n    if %11 {\n";
    format!("{}{count}{}    }}\n{}", &GEMM[..inside], &GEMM[inside..end], &GEMM[end..])
        .replace("by in (n + 127) / 128)", "by in (n + 127) / 128, bz in g)")
        .replace("  param c = absent\n", "  param c = absent\n  param count = in i32[g] strides [1] align 4\n")
        .replace("  sym k =", "  sym g = dim 0..=2147483647 multiple 1\n  sym k =")
}

#[test]
fn rows_of_groups_become_the_walk() {
    let options = Options { stages: 3, cluster: 2, ..Options::default() };
    let text = scheduled(&masked(), &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text.matches("rows $count by 128").count(), 2, "both roles walk alike:\n{text}");
    let reason = scheduled(&masked(), &Options { share_left: false, ..options }).expect_err("neighbours past the rows");
    assert!(reason.contains("without rows"), "{reason}");
    let other = masked().replace("clamp_index %10, 0, m", "clamp_index %10, 1, m");
    let reason = scheduled(&other, &options).expect_err("a tile that is always there");
    assert!(reason.contains("not about its rows"), "{reason}");
}
