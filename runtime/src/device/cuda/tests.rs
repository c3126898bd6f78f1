//! Launches with tensor maps, clusters and persistent grids, on the stand-in for a driver that `tests/runtime` has: it prints
//! what it is asked to do. The driver is looked up once a process, so the launches are in a child process.
#![allow(clippy::print_stdout, reason = "the child says what it does, the parent why it skips")]

use super::*;
use crate::compile::CompileReport;
use crate::device::Queue;
use kiln_codegen::abi::{Arg, L2Promotion, Launch, MapAxis, SigArg, Signature, Swizzle, TensorMapSpec, TensorView};
use kiln_codegen::bind;
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::emit::{GridPlan, Source};
use kiln_codegen::ir::{Access, Builder, DType, Kernel, ParamKind, Span, Sym, SymKind};
use kiln_codegen::spec::{BuildRequest, DimExpr, DimInfo, KernelDef, KernelInfo, ParamInfo, ParamInfoKind};
use kiln_codegen::tune::{Config, Space};
use std::collections::BTreeMap;
use std::process::Command;

/// `x [m, k]` in, `y [m, k]` out; what it computes does not matter.
#[derive(Debug)]
struct Mapped(KernelInfo);

impl KernelDef for Mapped {
    fn info(&self) -> &KernelInfo {
        &self.0
    }
    fn space(&self) -> Space {
        Space::default()
    }
    fn require(&self, _: &BTreeMap<String, usize>, _: &Config) -> std::result::Result<(), Vec<String>> {
        Ok(())
    }
    fn build(&self, _: &BuildRequest) -> std::result::Result<Kernel, Vec<Diagnostic>> {
        Err(vec![])
    }
}

fn definition() -> Arc<dyn KernelDef> {
    let sym = |n: &str| DimExpr::Sym(n.into());
    let tensor = |name: &str, access| ParamInfo {
        name: name.into(),
        kind: ParamInfoKind::Tensor { dtype: DType::Bf16, access, dims: vec![sym("m"), sym("k")], strides: None },
        optional: false,
    };
    Arc::new(Mapped(KernelInfo {
        name: "mapped".into(),
        file: file!().into(),
        line: line!(),
        dtypes: vec![],
        params: vec![tensor("x", Access::In), tensor("y", Access::Out)],
        dims: ["m", "k"].map(|n| DimInfo { name: n.into(), fixed: false }).to_vec(),
        deterministic: true,
        batch_invariant: vec![],
        launch: kiln_codegen::ir::LaunchMode::default(),
    }))
}

/// A kernel of one block for each 4 rows, and its source with a map of each tensor.
fn compiled(change: impl FnOnce(&mut Source)) -> Arc<Compiled> {
    let mut b = Builder::new("mapped", Span::unknown());
    let any = |name: &str| Sym { name: name.into(), kind: SymKind::Dim, multiple_of: 1, min: 0, max: i32::MAX as i64 };
    let (m, k) = (b.sym(any("m")), b.sym(any("k")));
    let (m, k, one, four) = (b.ix_sym(m), b.ix_sym(k), b.ix_const(1), b.ix_const(4));
    let mut map = |name: &str, access, swizzle| {
        let (extents, strides) = (vec![m, k], vec![k, one]);
        let kind = ParamKind::Tensor { dtype: DType::Bf16, access, extents, strides, align_bytes: 16, tma: true };
        SigArg::TensorMap(TensorMapSpec {
            param: b.param(name, kind),
            dtype: DType::Bf16,
            offset: None,
            axes: vec![
                MapAxis { extent: k, stride: one, box_extent: 64 },
                MapAxis { extent: m, stride: k, box_extent: 4 },
            ],
            swizzle,
            l2_promotion: L2Promotion::B128,
        })
    };
    let args = vec![map("x", Access::In, Swizzle::B128), map("y", Access::Out, Swizzle::None)];
    let blocks = b.ix_div_ceil(m, four);
    b.grid(&[blocks]);
    let kernel = b.finish().expect("closed");
    let mut source = Source {
        text: String::new(),
        signature: Signature { entry: "mapped".into(), args },
        threads: 384,
        shared_bytes: 100_000,
        cluster: [1; 3],
        cooperative: false,
        dependent_launch: false,
        grid: GridPlan::Blocks,
        npu: None,
    };
    change(&mut source);
    Arc::new(Compiled {
        plain: kernel.clone(),
        scheduled: kernel,
        source,
        image: b"\x7fELF".to_vec(),
        report: CompileReport::default(),
        target: "sm_90a".into(),
    })
}

/// Run by the test below in a child process.
#[test]
#[ignore = "`launches_reach_the_driver` runs it in a child process"]
fn child() {
    let gpu = open_gpu(0, &Settings::from_env()).expect("the stand-in is there");
    let device = Shared(Arc::clone(&gpu));
    let tensor = |shape: &[usize]| {
        let memory = device.alloc(DType::Bf16.bytes(shape.iter().product())).expect("fits");
        TensorView::contiguous(DType::Bf16, shape, memory)
    };
    let stream = gpu.context.new_stream().expect("opens");
    let queue = queue::CudaQueue::new(Arc::clone(&gpu), stream);
    let kernel = definition();
    let run = |compiled: Arc<Compiled>, shape: &[usize], times: usize| {
        let args = vec![Arg::Tensor(tensor(shape)), Arg::Tensor(tensor(shape))];
        let launch = Launch { kernel: Arc::clone(&kernel), config: Config::default(), args };
        let bound = bind::bind(&*kernel, &launch.config, &launch.args).expect("binds");
        let ready = Ready { launch: &launch, bound, args: launch.args.clone() };
        match gpu.place("mapped", compiled) {
            Ok(loaded) => lock(&gpu.loaded).insert(ready.key(), Arc::new(loaded)),
            Err(e) => return println!("refused: {e}"),
        };
        for arg in &launch.args {
            if let Arg::Tensor(v) = arg {
                println!("tensor {:x}", v.memory.address());
            }
        }
        for _ in 0..times {
            if let Err(e) = queue.launch(&ready) {
                println!("refused: {e}");
            }
        }
    };
    println!("# plain");
    run(compiled(|_| {}), &[64, 128], 2);
    println!("# cluster");
    run(compiled(|s| (s.cluster, s.dependent_launch) = ([2, 1, 1], true)), &[20, 128], 1);
    println!("# persistent");
    let persistent = |s: &mut Source| (s.cluster, s.grid) = ([2, 1, 1], GridPlan::Persistent { unit: [2, 1, 1] });
    run(compiled(persistent), &[4096, 128], 1);
    println!("# few");
    run(compiled(persistent), &[20, 128], 1);
    println!("# blocks");
    run(compiled(|s| s.grid = GridPlan::Persistent { unit: [1; 3] }), &[4096, 128], 1);
    println!("# large");
    run(compiled(|s| (s.cluster, s.shared_bytes) = ([4, 4, 1], 220_000)), &[64, 128], 1);
    println!("# no columns");
    run(compiled(|_| {}), &[8, 0], 1);
    println!("# no rows");
    run(compiled(|_| {}), &[0, 128], 1);
    println!("# box");
    let wide = |s: &mut Source| {
        if let Some(SigArg::TensorMap(spec)) = s.signature.args.first_mut() {
            spec.axes[0].box_extent = 128;
        }
    };
    run(compiled(wide), &[64, 128], 1);
}

/// What the child prints after `# name`.
fn part<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|l| *l != format!("# {name}")).skip(1);
    lines.take_while(|l| !l.starts_with("# ")).filter(|l| !l.starts_with("live") && !l.starts_with("entry")).collect()
}

#[test]
fn launches_reach_the_driver() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime/stand_in.c");
    let library = dir.path().join("libcuda.so.1");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    if !built.is_ok_and(|s| s.success()) {
        assert!(std::env::var_os("CI").is_none(), "`cc` is needed in CI");
        return println!("skip: no C compiler (`cc`) to build the stand-in driver");
    }
    std::fs::copy(&library, dir.path().join("libcuda.so")).expect("writable");
    let me = std::env::current_exe().expect("a running test has a path");
    let out = Command::new(me)
        .args(["--ignored", "--exact", "device::cuda::tests::child", "--nocapture"])
        .env("LD_LIBRARY_PATH", dir.path())
        .env("MAPS", "2")
        .output()
        .expect("the child starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));

    let plain = part(&text, "plain");
    let address = |line: &str| line.strip_prefix("tensor ").expect("an address").to_string();
    let tensors: Vec<String> = plain.iter().filter(|l| l.starts_with("tensor")).map(|l| address(l)).collect();
    let [x, y] = tensors.as_slice() else { panic!("two tensors: {text}") };
    let after: Vec<&str> = plain.iter().copied().filter(|l| !l.starts_with("tensor")).collect();
    let launch = format!("launch grid 16 1 1 threads 384 1 1 shared 100000 map {x} 2 map {y} 2");
    assert_eq!(
        after,
        [
            // More than 48 KiB of shared memory have to be asked for.
            "attribute 8 = 100000",
            &format!("map type 9 at {x}: 128/64 64/4*256 swizzle 3 promotion 2"),
            &format!("map type 9 at {y}: 128/64 64/4*256 swizzle 0 promotion 2"),
            &launch,
            // The second launch finds its maps encoded.
            &launch,
        ],
        "{text}"
    );
    let has = |name: &str, want: &str| {
        let lines = part(&text, name);
        assert!(lines.iter().any(|l| l.contains(want)), "no `{want}` in {lines:#?}");
    };
    // Five blocks are three clusters of two.
    has("cluster", "clusters of cluster 2 1 1");
    has("cluster", "launch grid 6 1 1 threads 384 1 1 shared 100000 cluster 2 1 1 dependent 1 map");
    // The stand-in holds 63 clusters of two, or five blocks on each of 132 multiprocessors.
    has("persistent", "launch grid 126 1 1 threads 384 1 1 shared 100000 cluster 2 1 1 map");
    has("few", "launch grid 6 1 1 threads 384 1 1 shared 100000 cluster 2 1 1 map");
    has("blocks", "launch grid 660 1 1 threads 384 1 1 shared 100000 map");
    has("large", "attribute 14 = 1");
    has(
        "large",
        "refused: cannot launch `mapped`: expected a cluster of blocks that fits on Stand-in, got [4, 4, 1] blocks of 384 \
         threads and 220000 bytes of shared memory each; use a config with a smaller cluster or smaller tiles",
    );
    // Nothing of it exists, and the driver takes no extent of 0.
    has("no columns", ": 1/64 1/4*16 swizzle 3 promotion 2");
    has("no columns", "launch grid 2 1 1");
    assert!(!part(&text, "no rows").iter().any(|l| l.contains("map type") || l.starts_with("launch")), "{text}");
    has(
        "box",
        "refused: cannot launch `mapped`: parameter `x`: expected rows of a box within the 128 bytes it is swizzled",
    );
}

/// Copies `x` to `y` box by box, as the copy engine sees both.
const COPY: &str = r#"
typedef unsigned int u32;
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void __launch_bounds__(128)
mapped(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y) {
    extern __shared__ __align__(1024) unsigned char tile[];
    __shared__ unsigned long long full;
    const u32 at = (u32)__cvta_generic_to_shared(tile), bar = (u32)__cvta_generic_to_shared(&full);
    const int row = blockIdx.x * 4;
    if (threadIdx.x != 0) return;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(at), "l"(&x), "r"(0), "r"(row), "r"(bar) : "memory");
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra again; }"
        :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
        :: "l"(&y), "r"(0), "r"(row), "r"(at) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
"#;

#[test]
fn maps_clusters_and_dependent_launches_on_a_gpu() {
    let gpu = match open_gpu(0, &Settings::from_env()) {
        Ok(gpu) if gpu.info.capability >= Some((9, 0)) => gpu,
        Ok(gpu) => return println!("skip: {} has no tensor maps", gpu.info.model),
        Err(e) => return println!("skip: {e}"),
    };
    let toolchain = match gpu.toolchain() {
        Ok(toolchain) => toolchain,
        Err(e) => return println!("skip: {e}"),
    };
    let device = Shared(Arc::clone(&gpu));
    let queue = queue::CudaQueue::new(Arc::clone(&gpu), gpu.context.new_stream().expect("opens"));
    let kernel = definition();
    for (cluster, dependent, swizzle) in
        [([1, 1, 1], false, Swizzle::None), ([2, 1, 1], true, Swizzle::B128), ([4, 1, 1], false, Swizzle::B128)]
    {
        let mut made = Arc::unwrap_or_clone(compiled(|s| {
            (s.text, s.threads, s.shared_bytes, s.cluster) = (COPY.into(), 128, 512, cluster);
            s.dependent_launch = dependent;
            for arg in &mut s.signature.args {
                if let SigArg::TensorMap(spec) = arg {
                    spec.swizzle = swizzle;
                }
            }
        }));
        let (image, report) = toolchain.compile_source(&made.source, "mapped", &gpu.info.arch).expect("compiles");
        assert!(report.assembled && report.missed().is_empty(), "{report:?}");
        made.image = image;
        let made = Arc::new(made);
        // 18 rows: the last box reaches over the end; no rows are no launch.
        for rows in [64usize, 18, 1, 0] {
            let bytes: Vec<u8> = (0..rows * 128).map(|i| (i * 7 % 251) as u8).collect();
            let tensor = || {
                let memory = device.alloc(bytes.len()).expect("fits");
                TensorView::contiguous(DType::Bf16, &[rows, 64], memory)
            };
            let (x, y) = (tensor(), tensor());
            device.write(&*x.memory, 0, &bytes).expect("copies");
            let args = vec![Arg::Tensor(x), Arg::Tensor(y.clone())];
            let launch = Launch { kernel: Arc::clone(&kernel), config: Config::default(), args };
            let bound = bind::bind(&*kernel, &launch.config, &launch.args).expect("binds");
            let ready = Ready { launch: &launch, bound, args: launch.args.clone() };
            let loaded = gpu.place("mapped", Arc::clone(&made)).expect("loads");
            lock(&gpu.loaded).insert(ready.key(), Arc::new(loaded));
            queue.launch(&ready).expect("launches");
            queue.synchronize().expect("no fault");
            let mut got = vec![0; bytes.len()];
            device.read(&*y.memory, 0, &mut got).expect("copies");
            assert!(got == bytes, "{rows} rows in clusters of {cluster:?}, {swizzle:?}");
        }
    }
    println!("{}: maps, clusters and dependent launches work", gpu.info.model);
}
