//! Sharded checkpoints, tensors that are missing, unknown or wrong, and files cut anywhere: every refusal names the file.

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_model::checkpoint::names::{Fault, FaultKind, audit};
use kiln_model::checkpoint::safetensors::{self, SafeTensors};
use kiln_model::checkpoint::shard::Checkpoint;
use kiln_model::inspect::inspect;
use kiln_model::{config, verify};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models").join(name)
}

type Tensors = Vec<(String, HostTensor)>;

fn tensors(name: &str) -> Tensors {
    let file = SafeTensors::open(&case(name).join("model.safetensors")).expect("opens");
    file.entries.keys().map(|n| (n.clone(), file.tensor(n).expect("reads"))).collect()
}

const SHARDS: usize = 3;

fn shard_name(i: usize) -> String {
    format!("model-{:05}-of-{SHARDS:05}.safetensors", i + 1)
}

/// A case's folder with other tensors, in shards.
fn sharded(name: &str, tensors: &Tensors, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "case.json", "expected.safetensors"] {
        std::fs::copy(case(name).join(file), dir.path().join(file)).expect("copies");
    }
    let (mut map, mut total) = (Map::new(), 0);
    for i in 0..SHARDS {
        let part: Tensors = tensors.iter().skip(i).step_by(SHARDS).cloned().collect();
        map.extend(part.iter().map(|(n, _)| (n.clone(), shard_name(i).into())));
        total += part.iter().map(|(_, t)| t.data.len()).sum::<usize>();
        std::fs::write(dir.path().join(shard_name(i)), safetensors::write(&part)).expect("writes");
    }
    let mut index = json!({"metadata": {"total_size": total}, "weight_map": map});
    change(&mut index);
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).expect("writes");
    dir
}

fn faults(name: &str, tensors: &Tensors) -> Vec<Fault> {
    let dir = sharded(name, tensors, |_| ());
    let c = config::read(dir.path()).expect("reads");
    audit(&c, &Checkpoint::open(dir.path(), [128, 128]).expect("opens"))
}

#[test]
fn shards_are_one_checkpoint() {
    let dir = sharded("v3", &tensors("v3"), |_| ());
    let device = kiln_runtime::open("cpu").expect("always there");
    let checks = verify::run(dir.path(), &device).expect("runs");
    assert!(checks.len() >= 4 && checks.iter().all(|c| c.ok == Some(true)), "{checks:?}");
    let report = inspect(dir.path()).expect("reads");
    assert_eq!((report.files, report.tensors, report.faults.len()), (SHARDS, 91, 0));
}

#[test]
fn committed_checkpoints_fit_their_configurations() {
    for name in ["v3", "v32", "v4_hca128", "v4_moe", "v4_mtp", "v41"] {
        let report = inspect(&case(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(report.faults, [], "{name}");
        assert_eq!(report.bytes, report.bytes_by_dtype.values().sum::<u64>());
    }
}

#[test]
fn an_index_that_does_not_agree_with_its_shards_is_refused() {
    let all = tensors("v3");
    let refused = |change: &dyn Fn(&mut Value)| {
        let dir = sharded("v3", &all, change);
        Checkpoint::open(dir.path(), [128, 128]).expect_err("refused").to_string()
    };
    let name = "model.norm.weight";
    let said = refused(&|j| j["weight_map"]["ghost"] = json!(shard_name(0)));
    assert!(said.contains(&shard_name(0)) && said.contains("`ghost`: missing"), "{said}");
    let said = refused(&|j| {
        j["weight_map"].as_object_mut().expect("a map").remove(name);
    });
    assert!(said.contains(name) && said.contains("not listed"), "{said}");
    let said = refused(&|j| j["metadata"]["total_size"] = json!(7));
    assert!(said.contains("total_size") && said.contains("index.json"), "{said}");
    let said = refused(&|j| j["weight_map"][name] = json!("../other/model.safetensors"));
    assert!(said.contains("the name of a file in the folder"), "{said}");
    let said = refused(&|j| j["weight_map"][name] = json!("gone.safetensors"));
    assert!(said.contains("gone.safetensors"), "{said}");
    let said = refused(&|j| *j = json!({"weight_map": []}));
    assert!(said.contains("`weight_map`"), "{said}");
    let none = tempfile::tempdir().expect("a folder");
    let said = Checkpoint::open(none.path(), [128, 128]).expect_err("nothing there").to_string();
    assert!(said.contains("found neither") && said.contains("next: "), "{said}");
}

#[test]
fn tensors_that_do_not_fit_are_named_with_their_file() {
    let all = tensors("v3");
    let name = "model.layers.1.mlp.experts.3.up_proj.weight";
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut changed = all.clone();
        change(&mut changed);
        let found = faults("v3", &changed);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().expect("one")
    };
    let f = with(&|t| t.retain(|(n, _)| n != name));
    assert_eq!((f.kind, f.tensor.as_str()), (FaultKind::Missing, name));
    let f = with(&|t| t.push(("model.surprise".into(), HostTensor::zeros(DType::F32, &[2]))));
    assert_eq!((f.kind, f.tensor.as_str(), f.got.as_str()), (FaultKind::Extra, "model.surprise", "F32 [2]"));
    let replace = |t: &mut Tensors, new: HostTensor| {
        t.iter_mut().filter(|(n, _)| n == name).for_each(|(_, t)| *t = new.clone());
    };
    let f = with(&|t| replace(t, HostTensor::zeros(DType::Bf16, &[64, 32])));
    assert_eq!((f.kind, f.expected.as_str()), (FaultKind::Wrong, "shape [32, 64]"));
    assert!(f.file.to_string_lossy().contains("-of-00003.safetensors"), "{f:?}");
    let f = with(&|t| replace(t, HostTensor::zeros(DType::I64, &[32, 64])));
    assert!(f.kind == FaultKind::Wrong && f.expected.contains("BF16") && f.got.contains("I64"), "{f:?}");
    // A format with scales, without them.
    let f = with(&|t| replace(t, HostTensor::zeros(DType::E4m3, &[32, 64])));
    assert!(f.kind == FaultKind::Missing && f.tensor.ends_with("up_proj.scale"), "{f:?}");
    let f = with(&|t| {
        replace(t, HostTensor::zeros(DType::E4m3, &[32, 64]));
        t.push((name.replace("weight", "weight_scale_inv"), HostTensor::zeros(DType::F32, &[2, 1])));
    });
    assert!(f.kind == FaultKind::Wrong && f.expected.contains("[1, 1]"), "{f:?}");
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    // Whatever is left of the last shard or the only file: the header, a part of it, a part of the data.
    let all = tensors("v4_moe");
    let dir = sharded("v4_moe", &all, |_| ());
    let shard = dir.path().join(shard_name(2));
    let bytes = std::fs::read(&shard).expect("reads");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize + 8;
    let step = (bytes.len() / 97).max(1);
    let edges = (0..24).chain(header - 12..header + 12).chain(bytes.len() - 12..bytes.len());
    let mut cuts: Vec<usize> = (0..bytes.len()).step_by(step).chain(edges).collect();
    cuts.sort_unstable();
    cuts.dedup();
    assert!(cuts.len() > 120);
    for cut in cuts {
        std::fs::write(&shard, &bytes[..cut]).expect("writes");
        let said = inspect(dir.path()).expect_err("cut").to_string();
        assert!(said.contains(&shard_name(2)), "{cut}: {said}");
    }
    std::fs::write(&shard, &bytes).expect("writes");
    assert!(inspect(dir.path()).expect("whole").faults.is_empty());
}

#[test]
fn quantised_weights_decode_to_the_numbers_they_stand_for() {
    // 3 x 5 in blocks of 2 x 4, partial at both edges; scales of one byte and of four.
    let codes = HostTensor::from_f64(DType::E4m3, &[3, 5], &[1.0; 15]);
    let scales = |dtype| HostTensor::from_f64(dtype, &[2, 2], &[1.0, 2.0, 4.0, 8.0]);
    let packed = HostTensor { dtype: DType::I8, shape: vec![1, 32], data: (0..32).map(|i| i * 8 + 1).collect() };
    let groups = HostTensor::from_f64(DType::E8m0, &[1, 2], &[2.0, 0.5]);
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = vec![
        ("a.weight".to_string(), codes.clone()),
        ("a.scale".to_string(), scales(DType::E8m0)),
        ("b.weight".to_string(), codes),
        ("b.weight_scale_inv".to_string(), scales(DType::F32)),
        ("c.weight".to_string(), packed),
        ("c.scale".to_string(), groups),
        ("d.weight".to_string(), HostTensor::zeros(DType::E4m3, &[2, 2])),
        // A table: a scale for 32 columns of each row.
        ("e.weight".to_string(), HostTensor::from_f64(DType::E4m3, &[3, 40], &[1.0; 120])),
        ("e.scale".to_string(), HostTensor::from_f64(DType::E8m0, &[3, 2], &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0])),
    ];
    std::fs::write(dir.path().join("model.safetensors"), safetensors::write(&tensors)).expect("writes");
    let file = Checkpoint::open(dir.path(), [2, 4]).expect("opens");
    let want = [1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0];
    for name in ["a.weight", "b.weight"] {
        assert_eq!(file.decoded(name).expect("decodes"), (vec![3, 5], want.to_vec()));
    }
    let (shape, values) = file.decoded("c.weight").expect("decodes");
    assert_eq!(shape, [1, 64]);
    // Byte i·8 + 1: the low half is code 1 or 9, the high half i/2.
    assert_eq!(values[..6], [1.0, 0.0, -1.0, 0.0, 1.0, 1.0]);
    assert_eq!(values[34..36], [-0.25, -0.0]);
    assert_eq!(values[62..], [-0.25, -3.0]);
    let (shape, values) = file.decoded("e.weight").expect("decodes");
    let row = |r: usize| (0..40).map(move |c| [1.0f32, 2.0, 4.0, 8.0, 16.0, 32.0][r * 2 + c / 32]);
    assert_eq!((shape, values), (vec![3, 40], (0..3).flat_map(row).collect()));
    let said = file.decoded("d.weight").expect_err("no scales").to_string();
    assert!(said.contains("without scales") && said.contains("model.safetensors"), "{said}");
}
