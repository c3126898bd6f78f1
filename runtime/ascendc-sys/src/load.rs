//! Finding and opening the libraries, and the one error of this crate.

use libloading::Library;
use std::path::{Path, PathBuf};

/// What can go wrong with the vendor's libraries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No library was found.
    #[error("{library} was not found; places tried: {}", tried.join(", "))]
    NotInstalled {
        /// File name.
        library: &'static str,
        /// Paths and names, each with what the loader said.
        tried: Vec<String>,
    },
    /// The library is older than what is asked of it.
    #[error("{} has no `{name}`, which comes with CANN {since}", library.display())]
    MissingSymbol {
        /// Function.
        name: &'static str,
        /// Library.
        library: PathBuf,
        /// First release that has it.
        since: &'static str,
    },
    /// A call failed.
    #[error("{call} gave {code} ({}){}", code_name(*code), message_text(message))]
    Acl {
        /// Function.
        call: &'static str,
        /// Its code.
        code: i32,
        /// What the library says about it; may be empty.
        message: String,
    },
}

fn message_text(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {}", message.trim()) }
}

/// Name of a code, with what it usually means for kernels.
pub const fn code_name(code: i32) -> &'static str {
    match code {
        100_000 => "invalid parameter",
        100_001 => "not initialised",
        100_002 => "initialised before",
        107_002 => "no context on this thread",
        200_000 => "out of memory",
        207_001 => "out of device memory",
        500_003 => "runtime error",
        500_004 => "driver error",
        507_008 => "wrong chip for this binary",
        507_014 => "AI core timeout: usually a flag that is never set",
        507_015 => "AI core exception: usually an address or an alignment",
        507_034 => "vector core timeout: usually a flag that is never set",
        507_035 => "vector core exception: usually an address or an alignment",
        _ => "unnamed code",
    }
}

fn open(file: &'static str, folders: &[PathBuf]) -> Result<(Library, PathBuf), Error> {
    let mut tried = vec![];
    let places = folders.iter().map(|f| f.join("lib64").join(file)).chain([PathBuf::from(file)]);
    for path in places {
        // SAFETY: opening the vendor's library runs its initialisers and nothing else.
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok((library, path)),
            Err(e) => tried.push(format!("{} ({e})", path.display())),
        }
    }
    Err(Error::NotInstalled { library: file, tried })
}

macro_rules! library {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            library: Library,
            path: PathBuf,
        }

        impl $name {
            /// Opens the library: in `lib64` of these folders, else by its name.
            ///
            /// # Errors
            /// All places tried.
            pub fn open_in(folders: &[PathBuf]) -> Result<Self, Error> {
                open($file, folders).map(|(library, path)| $name { library, path })
            }

            /// Where it was found.
            pub fn path(&self) -> &Path {
                &self.path
            }

            /// A function.
            ///
            /// # Safety
            /// `T` is a pointer to a function of the symbol's type, and is not used after the library is dropped.
            pub(crate) unsafe fn symbol<T: Copy>(&self, name: &'static str, since: &'static str) -> Result<T, Error> {
                // SAFETY: the caller vouches for the type; the pointer is copied out.
                match unsafe { self.library.get::<T>(name.as_bytes()) } {
                    Ok(found) => Ok(*found),
                    Err(_) => Err(Error::MissingSymbol { name, library: self.path.clone(), since }),
                }
            }
        }
    };
}

library!(
    /// The runtime.
    Acl,
    "libascendcl.so"
);
library!(
    /// The run-time compiler.
    Rtc,
    "libacl_rtc.so"
);
