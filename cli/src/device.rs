//! Choosing a device on the command line.

use crate::failure::Failure;
use kiln_runtime::{Device, Error, RunOptions, Settings};

/// The device option.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct DeviceArgs {
    /// Device: best, cpu, null, sim:TARGET, cuda:N or ascend:N (default: KILN_DEVICE, else the best one present)
    #[arg(long, value_name = "D")]
    pub device: Option<String>,
}

/// Opens the device the options name.
///
/// # Errors
/// An unknown name, no driver, no GPU; a sanitizer on a device that has none.
pub fn open(args: &DeviceArgs, sanitize: bool) -> Result<Device, Failure> {
    let settings = Settings::from_env();
    // The sanitizer lives in the tile VM, so without a name it chooses the device.
    let default = if sanitize { "cpu".to_string() } else { settings.device.clone() };
    let name = args.device.clone().unwrap_or(default);
    if sanitize && name != "cpu" {
        return Err(Failure::usage(
            "--sanitize",
            "the device cpu, whose tile VM has the checks",
            format!("`{name}`"),
            "use --device cpu",
        ));
    }
    let device = kiln_runtime::open_with(&name, &settings)?;
    Ok(device.with_run_options(RunOptions { sanitize, ..RunOptions::default() }))
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e.exit_code() {
            2 => Failure::Usage(e.to_string()),
            3 => Failure::Environment(e.to_string()),
            _ => Failure::Failed(e.to_string()),
        }
    }
}
