//! What `#[derive(KernelConfig)]` needs: fields as data.

use kiln_codegen::tune::{Axis, Config, ConfigError, ConfigValue};

/// A type a config field can have: `usize`, `bool`, or a fieldless enum with `#[derive(KernelConfig)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a config field",
    label = "expected `usize`, `bool` or a fieldless enum",
    note = "derive `KernelConfig` on the enum as well"
)]
pub trait ConfigField: Clone + Sized {
    /// As data.
    fn to_value(&self) -> ConfigValue;
    /// From data of the right kind.
    fn from_value(value: &ConfigValue) -> Option<Self>;
    /// What the field accepts, for messages.
    fn expected() -> String;
}
impl ConfigField for usize {
    fn to_value(&self) -> ConfigValue {
        ConfigValue::Int(*self)
    }
    fn from_value(value: &ConfigValue) -> Option<Self> {
        if let ConfigValue::Int(x) = value { Some(*x) } else { None }
    }
    fn expected() -> String {
        "a number".into()
    }
}
impl ConfigField for bool {
    fn to_value(&self) -> ConfigValue {
        ConfigValue::Bool(*self)
    }
    fn from_value(value: &ConfigValue) -> Option<Self> {
        if let ConfigValue::Bool(x) = value { Some(*x) } else { None }
    }
    fn expected() -> String {
        "true or false".into()
    }
}

/// A fieldless enum as a config field. Derived.
pub trait ConfigWord: Clone + Sized + 'static {
    /// Variants with their names.
    const WORDS: &'static [(&'static str, Self)];
    /// Name of this variant.
    fn word(&self) -> &'static str;
}
impl<E: ConfigWord> ConfigField for E {
    fn to_value(&self) -> ConfigValue {
        ConfigValue::Word(self.word().into())
    }
    fn from_value(value: &ConfigValue) -> Option<Self> {
        let ConfigValue::Word(w) = value else { return None };
        E::WORDS.iter().find(|(name, _)| name == w).map(|(_, x)| x.clone())
    }
    fn expected() -> String {
        let names: Vec<_> = E::WORDS.iter().map(|(n, _)| *n).collect();
        format!("one of {}", names.join(", "))
    }
}

/// An axis of a space: the values of `#[tune(..)]`, the default, which joins them if it is not among them.
pub fn axis<F: ConfigField>(name: &str, values: &[F], default: Option<F>, numerics: bool, doc: &str) -> Axis {
    let mut values: Vec<_> = values.iter().map(ConfigField::to_value).collect();
    let mut first = 0;
    if let Some(d) = default {
        let d = d.to_value();
        first = values.iter().position(|v| *v == d).unwrap_or_else(|| {
            values.insert(0, d);
            0
        });
    }
    Axis { name: name.into(), values, default: first, numerics, doc: doc.trim().into() }
}

/// Reads one field.
///
/// # Errors
/// If it is missing or of another kind.
pub fn field<F: ConfigField>(config: &Config, name: &str) -> Result<F, ConfigError> {
    let wrong = |got: &str| ConfigError { message: format!("config field `{name}` is {}, got {got}", F::expected()) };
    let value = config.0.get(name).ok_or_else(|| wrong("nothing"))?;
    F::from_value(value).ok_or_else(|| wrong(&value.to_string()))
}

/// Refuses fields that do not exist.
///
/// # Errors
/// Naming the first unknown field.
pub fn only(config: &Config, names: &[&str]) -> Result<(), ConfigError> {
    match config.0.keys().find(|k| !names.contains(&k.as_str())) {
        None => Ok(()),
        Some(k) => {
            Err(ConfigError { message: format!("config field `{k}` does not exist; fields: {}", names.join(", ")) })
        }
    }
}
