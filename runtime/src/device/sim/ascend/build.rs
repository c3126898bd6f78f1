//! From AscendC text to a loaded library: the host prelude where the text includes the vendor's header, the system's C++
//! compiler, the cache of objects the other simulated devices use.

use super::fiber::{Attach, Entry};
use crate::device::sim::build::Object;
use crate::device::sim::{HostCompiler, SimError};
use kiln_codegen::machine::ascend::Arch;
use std::sync::Arc;

macro_rules! prelude {
    ($file:literal) => {
        include_str!(concat!("../../../../../codegen/src/emit/ascend/prelude/host/", $file))
    };
}

/// What stands in for the vendor's header.
const PRELUDE: [&str; 5] =
    [prelude!("machine.h"), prelude!("tensor.h"), prelude!("copy.h"), prelude!("vector.h"), prelude!("register.h")];

/// How a text includes the vendor's header.
const INCLUDE: &str = "#include \"kernel_operator.h\"";

/// Contraction is off and overflow wraps, as on the chip.
const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
    "-nostdlib",
];

/// The host's `kernel_operator.h`, to compile texts with other options than the simulator's.
pub fn header() -> String {
    format!("#pragma once\n{}", PRELUDE.concat())
}

/// A kernel that can be run on the machine.
#[derive(Debug)]
pub struct Program {
    object: Object,
    /// Chip it was compiled for.
    pub arch: Arch,
    /// A block is a cube core with two vector cores.
    pub mixed: bool,
    /// Arguments of its entry.
    pub arity: usize,
}

impl Program {
    /// The host's `kernel_operator.h`.
    pub fn header() -> String {
        header()
    }

    /// `kiln_attach` and the entry, valid as long as the program lives.
    pub(super) fn functions(&self) -> Result<(Attach, Entry), SimError> {
        // SAFETY: `machine.h` and `host_text` declare these symbols with these types; the program keeps the object.
        unsafe { Ok((self.object.symbol("kiln_attach")?, self.object.symbol("kiln_entry")?)) }
    }
}

impl HostCompiler {
    /// Compiles and loads an AscendC text whose entry is `entry`, or takes it from the cache.
    ///
    /// # Errors
    /// The compiler is missing or refuses the text, or the cache cannot be written.
    pub fn load_ascend(&self, text: &str, entry: &str, arch: Arch) -> Result<Arc<Program>, SimError> {
        let arch_flag = format!("-D__NPU_ARCH__={}", arch.number());
        let mut flags = FLAGS.to_vec();
        flags.push(&arch_flag);
        let path = self.object(&host_text(text, entry), &flags, None)?;
        let object = Object::open(&path)?;
        // SAFETY: `host_text` declares this symbol with this type; the object is alive.
        let arity: unsafe extern "C" fn() -> u32 = unsafe { object.symbol("kiln_arity_of_entry")? };
        // SAFETY: it returns a constant.
        let arity = unsafe { arity() } as usize;
        Ok(Arc::new(Program { object, arch, mixed: is_mixed(text, entry), arity }))
    }
}

/// What the compiler sees; the text's own lines keep their numbers.
fn host_text(text: &str, entry: &str) -> String {
    let visible = "extern \"C\" __attribute__((visibility(\"default\"), KILN_PLAIN))";
    format!(
        "{}\n#line 1 \"kernel\"\n{}\n#line 1 \"entry\"\n\
         {visible} void kiln_entry(const uint64_t* words) {{ kiln_call(&{entry}, words); }}\n\
         {visible} uint32_t kiln_arity_of_entry() {{ return kiln_arity(&{entry}); }}\n",
        PRELUDE.concat(),
        text.replacen(INCLUDE, "", 1),
    )
}

/// True if the entry is declared for a cube core with its vector cores.
fn is_mixed(text: &str, entry: &str) -> bool {
    let head = format!("void {entry}(");
    let before = text.find(&head).map_or("", |at| &text[..at]);
    let declaration = before.rsplit("__global__").next().unwrap_or_default();
    !declaration.contains("__vector__")
}

#[cfg(test)]
mod tests {
    use super::is_mixed;

    #[test]
    fn the_kind_of_a_launch_stands_before_its_entry() {
        let text = "extern \"C\" __global__ __vector__ void a(GM_ADDR x)\n{}\n\
                    extern \"C\" __global__ __mix__(1, 2) void b(GM_ADDR x)\n{}\n";
        assert!(!is_mixed(text, "a") && is_mixed(text, "b"));
    }
}
