//! Settings: a struct whose fields are declared once, each with its type, default, range, help and other names.
//!
//! [`settings!`](crate::settings) makes the struct and its table. Everything else reads the table: flags,
//! environment variables and files, the written configuration, the settings that a resumed run may change, error
//! texts, and docs/settings.md.

use super::{Axis, ConfigError, unknown};
use limpid_base::words;
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::PathBuf;

/// A setting, beside its type and its default.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name: the field's.
    pub name: &'static str,
    /// Its help: the documentation of the field.
    pub help: &'static str,
    /// The placeholder of its value in help texts: N, X, KIND.
    pub value: &'static str,
    /// The range of its value.
    pub range: Range,
    /// Its names in other programs.
    pub aliases: &'static [&'static str],
    /// Its default in words, if its type cannot say it: where it follows from other settings, for example.
    pub default_text: Option<&'static str>,
    /// Whether it is one of the settings that a user needs first.
    pub common: bool,
    /// Whether a user may choose it; otherwise it follows from the data.
    pub chosen: bool,
    /// Whether files of earlier versions lack it: its default is what they had.
    pub optional_in_files: bool,
    /// Whether a run keeps it to its end, although its state does not hold it.
    pub fixed: bool,
    /// The names of settings that cannot be given beside it.
    pub excludes: &'static [&'static str],
    /// The name of a setting without which it means nothing.
    pub requires: Option<&'static str>,
    /// Its value where a flag is given without one.
    pub alone: Option<&'static str>,
}

/// The values that a setting may have, and how messages say it.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    /// All values of its type.
    Any,
    /// A whole number between two, both included.
    Whole(u64, u64, &'static str),
    /// A number for which this is true.
    Number(fn(f64) -> bool, &'static str),
}

impl Range {
    /// The range in words; empty for any value.
    pub fn said(&self) -> &'static str {
        match self {
            Range::Any => "",
            Range::Whole(.., said) | Range::Number(_, said) => said,
        }
    }
}

impl Setting {
    /// A setting whose values are written as `value`; [`settings!`](crate::settings) adds name and help.
    pub const fn of(value: &'static str) -> Setting {
        Setting {
            name: "",
            help: "",
            value,
            range: Range::Any,
            aliases: &[],
            default_text: None,
            common: false,
            chosen: true,
            optional_in_files: false,
            fixed: false,
            excludes: &[],
            requires: None,
            alone: None,
        }
    }
    /// A whole number between two, both included.
    pub const fn whole(self, least: u64, most: u64, said: &'static str) -> Setting {
        Setting { range: Range::Whole(least, most, said), ..self }
    }
    /// A whole number that may be 0.
    pub const fn count(self) -> Setting {
        self.whole(0, 1 << 40, "at most 2^40")
    }
    /// A whole number that may not be 0.
    pub const fn size(self) -> Setting {
        self.whole(1, 1 << 40, "at most 2^40")
    }
    /// A number for which this is true.
    pub const fn number(self, ok: fn(f64) -> bool, said: &'static str) -> Setting {
        Setting { range: Range::Number(ok, said), ..self }
    }
    /// A number at least 0 and less than 1.
    pub const fn below_one(self) -> Setting {
        self.number(|x| (0.0..1.0).contains(&x), "at least 0 and less than 1")
    }
    /// A number above 0 that f32 holds.
    pub const fn above_zero(self) -> Setting {
        self.number(|x| x as f32 > 0.0 && (x as f32).is_finite(), "above 0, and finite in f32")
    }
    /// A number of at least 0 that f32 holds, with a message of its own.
    pub const fn not_below_zero(self, said: &'static str) -> Setting {
        self.number(|x| (0.0..=f32::MAX as f64).contains(&x), said)
    }
    /// What other programs call it.
    pub const fn also(self, aliases: &'static [&'static str]) -> Setting {
        Setting { aliases, ..self }
    }
    /// Its default in words.
    pub const fn default_text(self, what: &'static str) -> Setting {
        Setting { default_text: Some(what), ..self }
    }
    /// One of the settings that a user needs first.
    pub const fn common(self) -> Setting {
        Setting { common: true, ..self }
    }
    /// It follows from the data: a user cannot choose it.
    pub const fn follows(self) -> Setting {
        Setting { chosen: false, ..self }
    }
    /// Files of earlier versions lack it, and had its default.
    pub const fn optional_in_files(self) -> Setting {
        Setting { optional_in_files: true, ..self }
    }
    /// A run keeps it to its end.
    pub const fn fixed(self) -> Setting {
        Setting { fixed: true, ..self }
    }
    /// None of these can be given beside it.
    pub const fn excludes(self, names: &'static [&'static str]) -> Setting {
        Setting { excludes: names, ..self }
    }
    /// It means nothing without this one.
    pub const fn requires(self, name: &'static str) -> Setting {
        Setting { requires: Some(name), ..self }
    }
    /// All its names: its own, and those in other programs.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }
    /// Its value where it is given without one.
    pub const fn alone(self, text: &'static str) -> Setting {
        Setting { alone: Some(text), ..self }
    }
    /// Its help as one line, without the full stop.
    pub fn line(&self) -> &'static str {
        self.help.trim().trim_end_matches('.')
    }
}

/// A setting that sets several others at once.
#[derive(Clone, Copy, Debug)]
pub struct SettingGroup {
    /// The setting itself.
    pub setting: Setting,
    /// The names of the settings that it sets.
    pub sets: &'static [&'static str],
}

/// A setting and the value it has.
pub type Field<'a> = (&'static Setting, &'a dyn Value);
/// The same, to be changed.
pub type FieldMut<'a> = (&'static Setting, &'a mut dyn Value);

/// How a value is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// As a text.
    Plain,
    /// As true or false.
    Switch,
    /// As texts with commas between them.
    List,
    /// As a path, which need not be UTF-8.
    Path,
}

/// A value that a setting can have.
pub trait Value: Debug {
    /// Sets the value from a text.
    ///
    /// # Errors
    /// If the text is no value.
    fn parse(&mut self, text: &str) -> Result<(), Box<dyn Error + Send + Sync>>;
    /// Sets the value from a text of the system, which only a path takes if it is not UTF-8.
    ///
    /// # Errors
    /// As [`Value::parse`].
    fn parse_os(&mut self, text: &OsStr) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.parse(text.to_str().ok_or("it is not UTF-8, and must be")?)
    }
    /// The value for a file; null for `None`.
    fn json(&self) -> serde_json::Value;
    /// The value as a whole number, if it is one.
    fn whole(&self) -> Option<u64> {
        None
    }
    /// The value as a number, if it is one.
    fn number(&self) -> Option<f64> {
        self.whole().map(|n| n as f64)
    }
    /// The names of all values, if they have names.
    fn choices(&self) -> Vec<&'static str> {
        vec![]
    }
    /// How it is given.
    fn kind(&self) -> ValueKind {
        ValueKind::Plain
    }
    /// The settings in it: itself, unless it is a struct of them.
    fn parts<'a>(&'a self, own: &'static Setting) -> Vec<Field<'a>>;
    /// The same, to be changed.
    fn parts_mut<'a>(&'a mut self, own: &'static Setting) -> Vec<FieldMut<'a>>;
}

/// Makes a type a [`Value`]: how it is parsed, and what else is known of it.
#[macro_export]
#[doc(hidden)]
macro_rules! setting_value {
    ($type:ty, |$text:ident| $parsed:expr $(, $method:ident = |$seen:ident| $found:expr => $kind:ty)?) => {
        impl $crate::config::Value for $type {
            fn parse(&mut self, $text: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                *self = $parsed;
                Ok(())
            }
            $(fn $method(&self) -> $kind { let $seen = self; $found })?
            $crate::config::setting_value!(alone);
        }
    };
    (alone) => {
        fn json(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("a setting is a plain value")
        }
        fn parts<'a>(&'a self, own: &'static $crate::config::Setting) -> Vec<$crate::config::Field<'a>> {
            vec![(own, self)]
        }
        fn parts_mut<'a>(&'a mut self, own: &'static $crate::config::Setting) -> Vec<$crate::config::FieldMut<'a>> {
            vec![(own, self)]
        }
    };
}
pub use setting_value;
setting_value!(u64, |text| text.parse()?, whole = |n| Some(*n) => Option<u64>);
setting_value!(Option<u64>, |text| Some(text.parse()?), whole = |n| *n => Option<u64>);
setting_value!(usize, |text| text.parse()?, whole = |n| Some(*n as u64) => Option<u64>);
setting_value!(Option<usize>, |text| Some(text.parse()?), whole = |n| n.map(|n| n as u64) => Option<u64>);
setting_value!(f64, |text| super::exact(text)?, number = |x| Some(*x) => Option<f64>);
setting_value!(Option<f64>, |text| Some(super::exact(text)?), number = |x| *x => Option<f64>);
setting_value!(bool, |text| text.parse()?, kind = |_value| ValueKind::Switch => ValueKind);
setting_value!(Option<bool>, |text| Some(text.parse()?), kind = |_value| ValueKind::Switch => ValueKind);
setting_value!(String, |text| text.into());
setting_value!(Option<String>, |text| Some(text.into()));
setting_value!(
    Vec<String>,
    |text| text.split(',').filter(|part| !part.is_empty()).map(String::from).collect(),
    kind = |_value| ValueKind::List => ValueKind
);
setting_value!(super::LayerPattern, |text| text.parse()?);
setting_value!(super::PairFactors, |text| text.parse()?);

impl<A: Axis + Debug + serde::Serialize> Value for A {
    fn parse(&mut self, text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self = super::parse_axis(text)?;
        Ok(())
    }
    fn choices(&self) -> Vec<&'static str> {
        A::ALL.iter().map(|value| value.name()).collect()
    }
    setting_value!(alone);
}

impl<A: Axis + Debug + serde::Serialize> Value for Option<A> {
    fn parse(&mut self, text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self = Some(super::parse_axis(text)?);
        Ok(())
    }
    setting_value!(alone);
}

impl Value for Option<PathBuf> {
    fn parse(&mut self, text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.parse_os(OsStr::new(text))
    }
    fn parse_os(&mut self, text: &OsStr) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self = Some(text.into());
        Ok(())
    }
    fn kind(&self) -> ValueKind {
        ValueKind::Path
    }
    setting_value!(alone);
}

/// The settings of a struct, made by [`settings!`](crate::settings).
pub trait Fields: Default + Clone {
    /// Every setting with its value, those of structs within it too.
    fn fields(&self) -> Vec<Field<'_>>;
    /// The same, to be changed.
    fn fields_mut(&mut self) -> Vec<FieldMut<'_>>;
}

/// A struct of settings, and how they depend on each other.
pub trait Settings: Fields {
    /// Settings that set several at once.
    fn groups() -> &'static [SettingGroup] {
        &[]
    }
    /// Changes the settings that follow from those that were `given`, unless they were given themselves; `was` is
    /// the state before.
    fn follow(&mut self, _was: &Self, _given: &dyn Fn(&str) -> bool) {}

    /// Sets a setting, or a group, by its name.
    ///
    /// # Errors
    /// If there is no setting of this name, or the text is no value of it.
    fn set(&mut self, name: &str, text: impl AsRef<OsStr>) -> Result<(), ConfigError> {
        let text = text.as_ref();
        if let Some(group) = Self::groups().iter().find(|group| group.setting.name == name) {
            return group.sets.iter().try_for_each(|part| self.set(part, text));
        }
        match self.fields_mut().into_iter().find(|(setting, _)| setting.name == name) {
            Some((setting, value)) => value.parse_os(text).map_err(|why| ConfigError::Value {
                what: setting.name,
                found: text.to_string_lossy().into_owned(),
                why: words::expected(&*why).map_or_else(|| why.to_string(), String::from),
            }),
            None => {
                let known = Self::default();
                let names: Vec<&str> = known.fields().iter().map(|(setting, _)| setting.name).collect();
                Err(unknown("setting", name, &names))
            }
        }
    }

    /// Applies settings by name, layer over layer. Within a layer groups come before their settings, and settings
    /// that follow from others are changed with them.
    ///
    /// # Errors
    /// As [`Settings::set`].
    fn over<T: AsRef<OsStr>>(&self, layers: &[Vec<(&str, T)>]) -> Result<Self, ConfigError> {
        let has = |layer: &[(&str, T)], name: &str| layer.iter().any(|(given, _)| *given == name);
        let is_group = |name: &str| Self::groups().iter().any(|group| group.setting.name == name);
        let mut all = self.clone();
        for layer in layers {
            let was = all.clone();
            let (groups, single): (Vec<_>, Vec<_>) = layer.iter().partition(|(name, _)| is_group(name));
            groups.into_iter().chain(single).try_for_each(|(name, text)| all.set(name, text))?;
            all.follow(&was, &|name| has(layer, name));
        }
        all.follow(self, &|name| layers.iter().any(|layer| has(layer, name)));
        Ok(all)
    }

    /// What a user may choose of these: groups, then settings; each with a value, which tells its type.
    fn choices(&self) -> Vec<Field<'_>> {
        let fields = self.fields();
        let value =
            |name: &str| fields.iter().find(|(setting, _)| setting.name == name).expect("a group is of settings").1;
        let groups = Self::groups().iter().map(|group| (&group.setting, value(group.sets[0])));
        groups.chain(fields.iter().copied().filter(|(setting, _)| setting.chosen)).collect()
    }

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// Names the first that is not, and its range.
    fn check_ranges(&self) -> Result<(), ConfigError> {
        for (setting, value) in self.fields() {
            let what = setting.name;
            let ok = match setting.range {
                Range::Any => true,
                Range::Whole(1.., ..) if value.whole() == Some(0) => return Err(ConfigError::Zero { what }),
                Range::Whole(least, most, _) => value.whole().is_none_or(|n| (least..=most).contains(&n)),
                Range::Number(ok, _) => value.number().is_none_or(ok),
            };
            if !ok {
                let found = value.whole().map(|n| n.to_string()).or_else(|| value.number().map(|x| x.to_string()));
                let found = found.unwrap_or_default();
                return Err(ConfigError::Range { what, found, expected: setting.range.said() });
            }
        }
        Ok(())
    }
}

/// Declares a struct of settings, each with its help, name, type, default and [`Setting`]. In a struct that is part
/// of another, names begin as `named` says.
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* pub struct $Type:ident named $prefix:literal { $($body:tt)* }) => {
        $crate::config::settings!(@ $prefix $(#[$meta])* $Type { $($body)* });
        impl $crate::config::Value for $Type {
            fn parse(&mut self, _: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                Err(concat!("it is several settings, whose names begin with ", $prefix).into())
            }
            fn json(&self) -> serde_json::Value {
                serde_json::to_value(self).expect("settings are plain values")
            }
            fn parts<'a>(&'a self, _: &'static $crate::config::Setting) -> Vec<$crate::config::Field<'a>> {
                $crate::config::Fields::fields(self)
            }
            fn parts_mut<'a>(&'a mut self, _: &'static $crate::config::Setting) -> Vec<$crate::config::FieldMut<'a>> {
                $crate::config::Fields::fields_mut(self)
            }
        }
    };
    ($(#[$meta:meta])* pub struct $Type:ident { $($body:tt)* }) => {
        $crate::config::settings!(@ "" $(#[$meta])* $Type { $($body)* });
    };
    (
        @ $prefix:literal $(#[$meta:meta])* $Type:ident {
            $(
                $(#[doc = $help:literal])+ $(#[serde($serde:meta)])?
                $field:ident: $type:ty = $default:expr, $setting:expr;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Type { $($(#[doc = $help])+ $(#[serde($serde)])? pub $field: $type,)* }
        impl $Type {
            /// The default of every setting.
            pub const DEFAULT: $Type = $Type { $($field: $default),* };
            /// Its own settings, in order; a struct of settings within it counts as one.
            pub const OWN: &'static [$crate::config::Setting] = &[$($crate::config::Setting {
                name: concat!($prefix, stringify!($field)), help: concat!($($help),+), ..$setting
            }),*];
        }
        impl Default for $Type {
            fn default() -> $Type { $Type::DEFAULT }
        }
        impl $crate::config::Fields for $Type {
            fn fields(&self) -> Vec<$crate::config::Field<'_>> {
                let values: Vec<&dyn $crate::config::Value> = vec![$(&self.$field),*];
                $Type::OWN.iter().zip(values).flat_map(|(setting, value)| value.parts(setting)).collect()
            }
            fn fields_mut(&mut self) -> Vec<$crate::config::FieldMut<'_>> {
                let values: Vec<&mut dyn $crate::config::Value> = vec![$(&mut self.$field),*];
                $Type::OWN.iter().zip(values).flat_map(|(setting, value)| value.parts_mut(setting)).collect()
            }
        }
    };
}
pub use settings;
