//! Every metric accepts the expected answer and what it says it tolerates, and refuses one wrong element.

use super::round::{e4m3_tensor, f32_tensor, i32_tensor};
use super::*;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::ParamValue;

fn tensors(list: &[(&str, HostTensor)]) -> Tensors {
    list.iter().map(|(name, t)| (name.to_string(), t.clone())).collect()
}

/// Judges `got` as the output `y` of a case that expects `want` and has `extra` tensors.
fn check(
    metric: &Metric,
    want: HostTensor,
    got: HostTensor,
    extra: &[(&str, HostTensor)],
    params: &[(&str, i64)],
) -> Verdict {
    let mut case = tensors(extra);
    case.insert("y".into(), want);
    let got = tensors(&[("y", got)]);
    let params = params.iter().map(|(name, x)| (name.to_string(), ParamValue::Int(*x))).collect();
    judge("y", metric, &Comparison { case: &case, got: &got, params: &params })
}

fn row(values: &[f64]) -> HostTensor {
    f32_tensor(&[1, values.len()], values)
}

#[test]
fn bit_exact_sees_one_bit_and_widens() {
    let want = row(&[1.0, 2.0, 0.0]);
    assert!(check(&Metric::BitExact, want.clone(), want.clone(), &[], &[]).ok);
    let v = check(&Metric::BitExact, want.clone(), row(&[1.0, 2.0, -0.0]), &[], &[]);
    assert!(!v.ok && v.value == 1.0 && v.reason.contains("[0, 2]"), "{v:?}");
    let narrow = HostTensor::from_f64(DType::Bf16, &[1, 3], &[1.0, 2.0, 0.0]);
    assert!(check(&Metric::BitExact, want.clone(), narrow, &[], &[]).ok);
    let narrow = HostTensor::from_f64(DType::Bf16, &[1, 3], &[1.0, 2.015625, 0.0]);
    assert!(!check(&Metric::BitExact, want.clone(), narrow, &[], &[]).ok);
    assert!(!check(&Metric::BitExact, want, f32_tensor(&[3], &[1.0, 2.0, 0.0]), &[], &[]).ok, "shape");
}

#[test]
fn all_close_or_takes_either_bound_and_places_of_infinities() {
    let m = Metric::AllCloseOr { abs: 1e-3, rel: 1e-2, cos_diff: None };
    let want = row(&[1e-5, 100.0, f64::INFINITY, f64::NAN]);
    assert!(check(&m, want.clone(), row(&[9e-4, 100.9, f64::INFINITY, f64::NAN]), &[], &[]).ok);
    for wrong in [
        [2e-3, 100.0, f64::INFINITY, f64::NAN],
        [1e-5, 101.1, f64::INFINITY, f64::NAN],
        [1e-5, 100.0, f64::NEG_INFINITY, f64::NAN],
        [1e-5, 100.0, f64::INFINITY, 0.0],
        [f64::NAN, 100.0, f64::INFINITY, f64::NAN],
    ] {
        assert!(!check(&m, want.clone(), row(&wrong), &[], &[]).ok, "{wrong:?}");
    }
    let strict = Metric::AllCloseOr { abs: 1e-3, rel: 1e-2, cos_diff: Some(1e-9) };
    assert!(!check(&strict, row(&[1.0, 1.0]), row(&[1.0, 1.009]), &[], &[]).ok, "direction");
    assert!(check(&strict, row(&[1.0, 1.0]), row(&[1.0, 1.0]), &[], &[]).ok);
    let zero = Metric::AllCloseOr { abs: 0.0, rel: 1e-6, cos_diff: None };
    assert!(check(&zero, row(&[0.0]), row(&[-0.0]), &[], &[]).ok, "no error at all always passes");
}

#[test]
fn calc_diff_is_global_with_an_element_bound_and_judged_columns() {
    assert_eq!(calc_diff(&[0.0], &[0.0]), 0.0);
    assert!((calc_diff(&[1.0, 0.0], &[0.0, 1.0]) - 1.0).abs() < 1e-15);
    let want: Vec<f64> = (0..1000).map(|i| (i as f64 * 0.7).sin()).collect();
    let mut got = want.clone();
    got[500] += 0.01;
    let global = Metric::CalcDiff { max: 1e-6, elem: None, cols: None, rows: None };
    let element = Metric::CalcDiff { max: 1e-6, elem: Some((1e-3, 1e-3)), cols: None, rows: None };
    assert!(check(&global, row(&want), row(&got), &[], &[]).ok, "one small error is invisible globally");
    assert!(!check(&element, row(&want), row(&got), &[], &[]).ok);
    let cols = Metric::CalcDiff {
        max: 1e-6,
        elem: Some((1e-3, 1e-3)),
        cols: Some("col < lens[row]; the rest free".into()),
        rows: None,
    };
    let lens = |n| [("lens", i32_tensor(&[1], &[n]))];
    assert!(check(&cols, row(&want), row(&got), &lens(500), &[]).ok);
    assert!(!check(&cols, row(&want), row(&got), &lens(501), &[]).ok);
    got[500] = f64::NEG_INFINITY;
    assert!(check(&cols, row(&want), row(&got), &lens(500), &[]).ok);
    assert!(!check(&cols, row(&want), row(&got), &lens(501), &[]).ok);
    let unknown = Metric::CalcDiff { max: 1.0, elem: None, cols: Some("every other one".into()), rows: None };
    assert!(!check(&unknown, row(&want), row(&want), &[], &[]).ok);
}

#[test]
fn gemm_finds_one_wrong_element_in_a_live_row() {
    let want = f32_tensor(&[2, 2], &[10.0, -3.0, 5.0, 7.0]);
    let absdot = f32_tensor(&[2, 2], &[20.0; 4]);
    let metric = |rows: Option<&str>| Metric::Gemm {
        calc_diff: 1e-3,
        rel: 0.004,
        absdot_factor: 0.0005,
        rows: rows.map(Into::into),
    };
    let near = f32_tensor(&[2, 2], &[10.04, -3.0, 5.0, 7.0]);
    let far = f32_tensor(&[2, 2], &[10.06, -3.0, 5.0, 7.0]);
    let extra = [("absdot", absdot), ("ids", i32_tensor(&[2], &[-1, 0])), ("counts", i32_tensor(&[1], &[1]))];
    assert!(check(&metric(None), want.clone(), near, &extra, &[]).ok);
    assert!(!check(&metric(None), want.clone(), far.clone(), &extra, &[]).ok);
    assert!(check(&metric(Some("ids >= 0")), want.clone(), far.clone(), &extra, &[]).ok, "row 0 is not judged");
    assert!(!check(&metric(Some("row < counts[group]; rest free")), want.clone(), far, &extra, &[]).ok);
    let second = f32_tensor(&[2, 2], &[10.0, -3.0, f64::NAN, 7.0]);
    assert!(check(&metric(Some("row < counts[group]; rest free")), want.clone(), second.clone(), &extra, &[]).ok);
    assert!(!check(&metric(Some("ids >= 0")), want.clone(), second, &extra, &[]).ok);
    assert!(!check(&metric(None), want.clone(), want, &[], &[]).ok, "absdot is needed");
}

#[test]
fn calc_diff_over_rows_ignores_the_others() {
    let want = f32_tensor(&[2, 2], &[10.0, -3.0, f64::NAN, f64::NAN]);
    let metric = Metric::CalcDiff { max: 1e-6, elem: None, cols: None, rows: Some("row < counts[group]".into()) };
    let counts = [("counts", i32_tensor(&[1], &[1]))];
    let good = f32_tensor(&[2, 2], &[10.0, -3.0, 5.0, 7.0]);
    let bad = f32_tensor(&[2, 2], &[10.0, -2.0, 5.0, 7.0]);
    assert!(check(&metric, want.clone(), good.clone(), &counts, &[]).ok);
    assert!(!check(&metric, want.clone(), bad, &counts, &[]).ok);
    assert!(!check(&metric, want, good, &[], &[]).ok, "the counts are needed");
}

#[test]
fn fp8_codes_count_steps_in_value_order() {
    let m = Metric::Fp8Codes { max_code_step: 1, max_mismatch_fraction: 0.25 };
    let want = e4m3_tensor(&[4], vec![0x00, 0x38, 0xb8, 0x7f]);
    for (codes, ok) in [
        ([0x80, 0x38, 0xb8, 0xff], true),
        ([0x81, 0x38, 0xb8, 0x7f], true),
        ([0x81, 0x39, 0xb8, 0x7f], false),
        ([0x00, 0x38, 0xba, 0x7f], false),
        ([0x00, 0x38, 0xb8, 0x7e], false),
        ([0x00, 0xb8, 0xb8, 0x7f], false),
    ] {
        assert_eq!(check(&m, want.clone(), e4m3_tensor(&[4], codes.to_vec()), &[], &[]).ok, ok, "{codes:x?}");
    }
    assert!(!check(&m, row(&[1.0]), row(&[1.0]), &[], &[]).ok, "other types have no codes");
}

#[test]
fn a_scale_may_move_one_step_only_at_the_boundary() {
    let m = Metric::Pow2OrClose { rel: 1e-6, allow_one_step_if_amax_within: 1e-5 };
    // Block 0 peaks at 448.001 (needs 2), block 1 at 500 (needs 2).
    let act = f32_tensor(&[1, 4], &[1.0, -448.001, 500.0, 2.0]);
    let extra = [("act", act)];
    let want = row(&[2.0, 2.0]);
    for (got, ok) in
        [([2.0, 2.0], true), ([1.0, 2.0], true), ([2.0, 1.0], false), ([4.0, 2.0], false), ([2.0, 4.0], false)]
    {
        assert_eq!(check(&m, want.clone(), row(&got), &extra, &[("gran_k", 2)]).ok, ok, "{got:?}");
    }
}

#[test]
fn topk_accepts_any_choice_among_equals_and_nothing_else() {
    // Values 5, 3, 3, 3, 1 and k = 3, row end 4, offset 10: index 0 must, two of 1, 2, 3.
    let bools = |v: [u8; 5]| HostTensor { dtype: DType::Bool, shape: vec![1, 5], data: v.to_vec() };
    let extra = |nan: u8, end: i32| {
        vec![
            ("must", bools([1, 0, 0, 0, 0])),
            ("tie", bools([0, 1, 1, 1, 0])),
            ("ties_needed", i32_tensor(&[1], &[2])),
            ("nan_rows", HostTensor { dtype: DType::Bool, shape: vec![1], data: vec![nan] }),
            ("end", i32_tensor(&[1], &[end])),
            ("output_idx_offset", i32_tensor(&[1], &[10])),
        ]
    };
    let want = i32_tensor(&[1, 4], &[10, 11, 12, -1]);
    let run = |out: [i32; 4], nan, end| {
        check(
            &Metric::TopkSet,
            want.clone(),
            i32_tensor(&[1, 4], &out),
            &extra(nan, end),
            &[("idx_oob_fill_value", -1)],
        )
    };
    for (out, ok) in [
        ([10, 11, 12, -1], true),
        ([13, 10, 12, -1], true),
        ([10, 11, 11, -1], false),
        ([11, 12, 13, -1], false),
        ([10, 11, 14, -1], false),
        ([0, 1, 2, -1], false),
        ([10, 11, 12, 9], false),
    ] {
        let v = run(out, 0, 3);
        // With end 3 column 3 does not exist, so a choice of it is wrong.
        assert_eq!(v.ok, ok && !out.contains(&13), "{out:?}: {}", v.reason);
    }
    assert!(run([0x3f3f_3f3f, 7, 7, -1], 1, 3).ok, "a row with NaN reports itself");
    assert!(run([12, 10, 11, -1], 1, 3).ok, "or holds any distinct indices");
    assert!(!run([12, 12, 11, -1], 1, 3).ok);
}

#[test]
fn expert_maps_must_agree() {
    // Two tokens with two slots each, two experts with two aligned places each; slot (1, 1) is dropped.
    let case = tensors(&[
        ("topk_idx", i32_tensor(&[2, 2], &[0, 1, 1, -1])),
        ("expert_start", i32_tensor(&[2], &[0, 2])),
        ("expert_end", i32_tensor(&[2], &[2, 4])),
        ("pos_to_expert", i32_tensor(&[4], &[0, -1, 1, 1])),
        ("pos_to_token", i32_tensor(&[4], &[0, -1, 0, 1])),
        ("pos_to_token_topk", i32_tensor(&[4], &[0, -1, 1, 2])),
        ("token_topk_to_pos", i32_tensor(&[2, 2], &[0, 2, 3, -1])),
    ]);
    let run = |got: &Tensors| {
        judge("pos_to_token", &Metric::MoeMapping, &Comparison { case: &case, got, params: &Params::new() }).ok
    };
    assert!(run(&case));
    let mut swapped = case.clone();
    swapped.insert("pos_to_token".into(), i32_tensor(&[4], &[0, -1, 1, 0]));
    assert!(!run(&swapped), "one map alone");
    swapped.insert("pos_to_token_topk".into(), i32_tensor(&[4], &[0, -1, 2, 1]));
    swapped.insert("token_topk_to_pos".into(), i32_tensor(&[2, 2], &[0, 3, 2, -1]));
    assert!(run(&swapped), "another order inside the expert");
    for name in ["pos_to_expert", "pos_to_token", "pos_to_token_topk"] {
        let mut padded = case.clone();
        let mut t = padded[name].clone();
        t.data[4..8].copy_from_slice(&0i32.to_le_bytes());
        padded.insert(name.into(), t);
        assert!(!run(&padded), "padding of {name}");
    }
    let mut dropped = case.clone();
    dropped.insert("token_topk_to_pos".into(), i32_tensor(&[2, 2], &[0, 2, 2, -1]));
    assert!(!run(&dropped), "a position given twice");
    for (rest, fits) in [(vec![-1, -1], true), (vec![-1, 1], false)] {
        let mut longer = case.clone();
        let mut t = longer["pos_to_token"].clone();
        t.data.extend(rest.iter().flat_map(|x: &i32| x.to_le_bytes()));
        t.shape[0] += rest.len();
        longer.insert("pos_to_token".into(), t);
        assert_eq!(run(&longer), fits, "{rest:?} past the end");
    }
    let mut shorter = case.clone();
    shorter.insert("pos_to_token".into(), i32_tensor(&[3], &[0, -1, 0]));
    assert!(!run(&shorter), "a map that ends early");
}

#[test]
fn metrics_are_read_from_manifest_fields() {
    let fields = |pairs: &'static [(&'static str, f64)]| move |f: &str| pairs.iter().find(|p| p.0 == f).map(|p| p.1);
    let text = |f: &str| (f == "rows").then(|| "m_indices >= 0".to_string());
    let m = Metric::from_fields(
        "gemm",
        &fields(&[("calc_diff", 1e-5), ("elem.rel", 0.5), ("elem.absdot_factor", 0.25)]),
        &text,
    );
    let want = Metric::Gemm { calc_diff: 1e-5, rel: 0.5, absdot_factor: 0.25, rows: Some("m_indices >= 0".into()) };
    assert_eq!(m, Ok(want));
    assert!(Metric::from_fields("allclose_or", &fields(&[("abs", 1.0)]), &text).is_err_and(|e| e.contains("rel")));
    assert!(Metric::from_fields("vibes", &fields(&[]), &text).is_err_and(|e| e.contains("vibes")));
}
