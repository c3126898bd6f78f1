//! Random programs on devices: arguments, batches, comparison to the bit.

use super::build::{Built, Program, Tensor};
use kiln_codegen::abi::{Arg, Launch, Launcher, TensorView};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{Access, DType, Kernel, print};
use kiln_codegen::machine::Dice;
use kiln_codegen::spec::{BuildRequest, KernelDef, KernelInfo};
use kiln_codegen::tune::{Config, Space};
use kiln_codegen::{compile, formats};
use kiln_runtime::{Device, Error, Settings, open_with};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What came of a program.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The same bits.
    Equal,
    /// It asks for more than the target has.
    Refused(String),
    /// Anything else.
    Failed(String),
}

/// Something that builds a kernel for one launch.
pub trait Source: Debug + Send + Sync {
    /// Seed of the data.
    fn seed(&self) -> u64;
    /// Builds it, with the facts of a launch if there is one.
    fn build(&self, request: Option<&BuildRequest>) -> Built;
}

impl Source for Program {
    fn seed(&self) -> u64 {
        self.seed
    }
    fn build(&self, request: Option<&BuildRequest>) -> Built {
        Program::build(self, request)
    }
}

/// A source as a kernel.
#[derive(Debug)]
struct Def<S> {
    source: S,
    info: KernelInfo,
}

impl<S: Source> KernelDef for Def<S> {
    fn info(&self) -> &KernelInfo {
        &self.info
    }
    fn space(&self) -> Space {
        Space::default()
    }
    fn require(&self, _: &BTreeMap<String, usize>, _: &Config) -> Result<(), Vec<String>> {
        Ok(())
    }
    fn build(&self, request: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        Ok(self.source.build(Some(request)).kernel)
    }
}

/// IR text of a program.
pub fn text(program: &Program) -> String {
    print::text(&program.build(None).kernel)
}

/// A bit pattern: small numbers, corners, anything.
fn random(dtype: DType, dice: &mut Dice) -> u64 {
    let all = u64::MAX >> (64 - dtype.bits());
    let kind = dice.below(100);
    match dtype {
        DType::Bool => dice.below(2) as u64,
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => {
            let unit = dice.below(1 << 20) as f64 / f64::from(1 << 20) - 0.5;
            let x = match kind {
                0..60 => unit * 8.0,
                60..75 => (unit * 40.0).round(),
                75..80 => unit * 1e5,
                80..94 => [0.0, -0.0, 1.0, -1.0, 1e-6, 1e-40, -1e-39, 3e4][dice.below(8)],
                94..96 => [f64::INFINITY, f64::NEG_INFINITY, f64::NAN][dice.below(3)],
                _ => return dice.roll() & all,
            };
            formats::encode_f64(dtype, x)
        }
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => match kind {
            0..60 => (dice.below(48) as i64 - 6) as u64 & all,
            60..75 => [0, 1, all, all >> 1, (all >> 1) + 1][dice.below(5)],
            _ => dice.roll() & all,
        },
    }
}

/// Tensors of a launch. Outputs hold a pattern, so that an element nobody writes is the same everywhere.
fn data(tensors: &[Tensor], seed: u64) -> Vec<HostTensor> {
    let mut dice = Dice::new(seed ^ 0xda7a);
    let fill = |t: &Tensor| {
        let mut host = HostTensor::zeros(t.dtype, &t.shape);
        if t.access == Access::Out {
            host.data.fill(if t.dtype == DType::Bool { 1 } else { 0x5a });
        } else {
            (0..host.num_elements())
                .for_each(|i| formats::store_bits(&mut host.data, t.dtype, i, random(t.dtype, &mut dice)));
        }
        host
    };
    tensors.iter().map(fill).collect()
}

/// A launch with its tensors on a device.
struct Placed {
    launch: Launch,
    views: Vec<TensorView>,
}

fn place(device: &Device, def: &Arc<dyn KernelDef>, tensors: &[HostTensor]) -> Result<Placed, Error> {
    let views = tensors.iter().map(|t| device.upload(t)).collect::<Result<Vec<_>, _>>()?;
    let args = views.iter().cloned().map(Arg::Tensor).collect();
    Ok(Placed { launch: Launch { kernel: Arc::clone(def), config: Config::default(), args }, views })
}

/// The first element that differs; NaNs are equal, since devices choose their bits.
fn difference(tensors: &[Tensor], want: &[HostTensor], got: &[HostTensor]) -> Option<String> {
    for (p, t) in tensors.iter().enumerate().filter(|(_, t)| t.access != Access::In) {
        for i in 0..want[p].num_elements() {
            let (a, b) = (want[p].bits(i), got[p].bits(i));
            let nan = |bits| t.dtype.is_float() && formats::decode_f64(t.dtype, bits).is_nan();
            if a != b && !(nan(a) && nan(b)) {
                let show = |bits| match t.dtype.is_float() {
                    true => format!("{bits:#x} ({:?})", formats::decode_f64(t.dtype, bits)),
                    false => format!("{bits:#x}"),
                };
                let (a, b, d, shape) = (show(a), show(b), t.dtype, &t.shape);
                return Some(format!("element {i} of `p{p}` ({d} {shape:?}): the VM has {a}, the device {b}"));
            }
        }
    }
    None
}

/// Runs programs in the VM and on a device.
#[derive(Debug)]
pub struct Runner {
    name: String,
    settings: Settings,
    /// Compiled programs live as long as this; nobody needs them again.
    _cache: tempfile::TempDir,
}

impl Runner {
    /// For a device by name.
    pub fn new(name: &str, settings: &Settings) -> Self {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let settings = Settings { cache_dirs: vec![cache.path().into()], threads: Some(1), ..settings.clone() };
        Runner { name: name.into(), settings, _cache: cache }
    }
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Whether the device and its compiler are there.
    pub fn check(&self) -> Result<(), String> {
        let device = open_with(&self.name, &self.settings).map_err(|e| e.to_string())?;
        device.compiler().map_err(|e| e.to_string())?;
        if self.name.starts_with("sim:") {
            let cxx = &self.settings.cxx;
            let started = std::process::Command::new(cxx).arg("--version").output();
            started.map_err(|e| format!("{}: no C++ compiler for the simulator: {e}", cxx.display()))?;
        }
        Ok(())
    }

    /// Runs programs whose texts are compiled together.
    pub fn batch<S: Source + Clone + 'static>(&self, sources: &[S]) -> Vec<Outcome> {
        // A device of their own, so that what was loaded for them is unloaded after them.
        let open = |name: &str| open_with(name, &self.settings).and_then(|d| Ok((d.stream()?, d)));
        let (Ok((cpu, host)), Ok((stream, device))) = (open("cpu"), open(&self.name)) else {
            return vec![Outcome::Failed("the devices cannot be opened".into()); sources.len()];
        };
        let mut out: Vec<Option<Outcome>> = vec![];
        let mut jobs = vec![];
        for (i, source) in sources.iter().enumerate() {
            let done = guarded(|| {
                let built = source.build(None);
                let def: Arc<dyn KernelDef> = Arc::new(Def { source: source.clone(), info: built.info });
                let tensors = data(&built.tensors, source.seed());
                let here = place(&host, &def, &tensors).map_err(failed)?;
                cpu.launch(&here.launch).map_err(failed)?;
                let want =
                    here.views.iter().map(|v| host.download(v)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
                let there = place(&device, &def, &tensors).map_err(failed)?;
                let bound =
                    kiln_codegen::bind::bind(&*def, &there.launch.config, &there.launch.args).map_err(failed)?;
                let checked = compile::build(&*def, &bound.request).map_err(|d| Outcome::Failed(all(&d)))?;
                // Memory and missing forms are the target's right to refuse; anything else is a defect of a pass.
                compile::source(&checked, device.target()).map_err(|d| {
                    match d.iter().all(|d| d.code.starts_with('C')) {
                        true => Outcome::Refused(all(&d)),
                        false => Outcome::Failed(all(&d)),
                    }
                })?;
                Ok((there, want, built.tensors))
            });
            match done {
                Ok((there, want, tensors)) => {
                    out.push(None);
                    jobs.push((i, there, want, tensors));
                }
                Err(outcome) => out.push(Some(outcome)),
            }
        }
        let launches: Vec<Launch> = jobs.iter().map(|j| j.1.launch.clone()).collect();
        // If it fails, each launch prepares itself and says why.
        let _ = stream.prepare_together(&launches);
        for (i, there, want, tensors) in jobs {
            let ran = guarded(|| {
                stream.launch(&there.launch).map_err(failed)?;
                stream.synchronize().map_err(failed)?;
                let got = there.views.iter().map(|v| device.download(v)).collect::<Result<Vec<_>, _>>();
                match difference(&tensors, &want, &got.map_err(failed)?) {
                    None => Ok(Outcome::Equal),
                    Some(text) => Err(Outcome::Failed(text)),
                }
            });
            out[i] = Some(ran.unwrap_or_else(|failed| failed));
        }
        out.into_iter().map(|o| o.expect("every program has an outcome")).collect()
    }
}

fn all(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|d| format!("{} {}", d.code, d.message)).collect::<Vec<_>>().join("; ")
}

fn failed(e: impl std::fmt::Display) -> Outcome {
    Outcome::Failed(e.to_string())
}

/// A panic is an outcome of the program that caused it.
fn guarded<T>(f: impl FnOnce() -> Result<T, Outcome>) -> Result<T, Outcome> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Outcome::Failed(format!("panicked: {}", text.unwrap_or("without a message"))))
    })
}
