//! Configurations and their spaces as plain data. Searching and measuring is `runtime::tune`'s.

use std::collections::BTreeMap;
use std::fmt;

/// A value of one config field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConfigValue {
    /// `usize` fields.
    Int(usize),
    /// `bool` fields.
    Bool(bool),
    /// Fields of an enum type, by variant name.
    Word(String),
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Int(x) => write!(f, "{x}"),
            ConfigValue::Bool(x) => write!(f, "{x}"),
            ConfigValue::Word(x) => write!(f, "{x}"),
        }
    }
}

/// A configuration: field name to value, ordered by name so that its text is stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Config(pub BTreeMap<String, ConfigValue>);

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(|(k, v)| format!("{k}={v}")).collect();
        f.write_str(&parts.join(","))
    }
}

/// One field of a config type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Field name.
    pub name: String,
    /// Values the tuner tries; the first one is the default unless `#[default(..)]` says otherwise.
    pub values: Vec<ConfigValue>,
    /// Index of the default in `values`.
    pub default: usize,
    /// True for `#[numerics]` fields: they change result bits and stay fixed in reproducible mode.
    pub numerics: bool,
    /// The field's doc comment.
    pub doc: String,
}

/// All configurations of a kernel: the product of its axes, less those a kernel's `require` rejects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Name of the config type.
    pub name: String,
    /// Fields.
    pub axes: Vec<Axis>,
}

/// A config that does not fit its space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// What was wrong, with what was expected.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for ConfigError {}

impl Space {
    /// The default configuration.
    pub fn default_config(&self) -> Config {
        Config(self.axes.iter().map(|a| (a.name.clone(), a.values[a.default].clone())).collect())
    }

    /// Every configuration, the default first.
    pub fn all(&self) -> Vec<Config> {
        let mut out = vec![Config::default()];
        for axis in &self.axes {
            out = out
                .into_iter()
                .flat_map(|c| {
                    axis.values.iter().map(move |v| {
                        let mut c = c.clone();
                        c.0.insert(axis.name.clone(), v.clone());
                        c
                    })
                })
                .collect();
        }
        let default = self.default_config();
        out.retain(|c| *c != default);
        out.insert(0, default);
        out
    }

    /// Applies `k=v` overrides to the default configuration.
    ///
    /// # Errors
    /// A name that is no field, a value of the wrong kind, or a value outside the space.
    pub fn with(&self, overrides: &[(String, String)]) -> Result<Config, ConfigError> {
        let mut c = self.default_config();
        for (k, v) in overrides {
            let Some(axis) = self.axes.iter().find(|a| a.name == *k) else {
                let names: Vec<_> = self.axes.iter().map(|a| a.name.as_str()).collect();
                return Err(ConfigError {
                    message: format!(
                        "config field `{k}` does not exist in {}; fields: {}",
                        self.name,
                        names.join(", ")
                    ),
                });
            };
            let Some(value) = axis.values.iter().find(|x| x.to_string() == *v) else {
                let allowed: Vec<_> = axis.values.iter().map(ToString::to_string).collect();
                return Err(ConfigError {
                    message: format!("config {k}={v} is outside its space; allowed: {}", allowed.join(", ")),
                });
            };
            c.0.insert(k.clone(), value.clone());
        }
        Ok(c)
    }
}

/// What `#[derive(KernelConfig)]` implements.
pub trait KernelConfig: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// The space of this type.
    fn space() -> Space;
    /// This configuration as data.
    fn to_config(&self) -> Config;
    /// The configuration data describes.
    ///
    /// # Errors
    /// A missing or unknown field, or a value of the wrong kind. Values outside `#[tune(..)]` are accepted: code may ask
    /// for any value, only the command line and the tuner stay inside the space.
    fn from_config(config: &Config) -> Result<Self, ConfigError>;
}

/// For kernels without a config.
impl KernelConfig for () {
    fn space() -> Space {
        Space { name: "()".into(), axes: vec![] }
    }
    fn to_config(&self) -> Config {
        Config::default()
    }
    fn from_config(_: &Config) -> Result<Self, ConfigError> {
        Ok(())
    }
}
