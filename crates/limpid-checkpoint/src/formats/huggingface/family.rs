//! A family of HuggingFace's models, as data: the settings that all its models share, what each key of `config.json`
//! means ([`Key`]), and which of its tensors holds which of our parameters. The same lines serve reading and writing.

use super::keys::{Answer, Key, Keys, refuse};
use crate::formats::express::{Complaints, canonical, common, plain, with_consequences};
use crate::formats::links::{Dialect, Link};
use crate::formats::rows;
use limpid_core::config::{Activation, Config, RotaryPairs};
use limpid_core::model::Model;
use serde_json::{Map, Value};

/// One of HuggingFace's model families.
pub(crate) struct Family {
    /// What messages call it, its `model_type`, and its class with a head over the vocabulary.
    pub(super) names: [&'static str; 3],
    /// Its class without such a head; nothing where limpid reads none without.
    pub(super) headless: &'static str,
    /// What stands before the names of all but the head.
    pub(super) prefix: &'static str,
    /// Settings of all its models, where these are not GPT-2's, in texts that families share.
    pub(super) always: &'static [&'static str],
    /// The keys of `config.json`.
    pub(super) keys: &'static [Key],
    /// Settings whose keys are missing, where the keys that families share have another value.
    pub(super) usual: &'static str,
    /// The tensors below the prefix, in tables (see [`rows`]) that families share.
    pub(super) tensors: &'static [&'static str],
    /// The tensors of the head.
    pub(super) head: &'static str,
    /// Names of copies, and what they are copies of where the head is tied; biases always.
    pub(super) copies: &'static [(&'static str, &'static str)],
    /// Tensors that no result depends on; `*` at either end stands for any text.
    pub(super) idle: &'static [&'static str],
    /// Which features rotary positions turn together, as it stores them.
    pub(super) pairs: RotaryPairs,
    /// Whether the head's transform has the exact GELU, whatever the blocks have.
    pub(super) head_gelu: bool,
}

impl Family {
    /// What messages call it.
    pub(crate) fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Its `model_type`.
    pub(crate) fn kind(&self) -> &'static str {
        self.names[1]
    }

    /// What the weights say of the configuration: an encoder's head is in the file or not, whatever config.json says.
    ///
    /// # Errors
    /// If the head is not what limpid has.
    pub(crate) fn fit(&self, config: Config, has: impl Fn(&str) -> bool) -> Answer<Config> {
        let bias = rows::rows(self.head).find(|row| row.ours == "unembed.bias");
        if !self.headless.is_empty() && bias.is_some_and(|bias| !has(bias.theirs)) {
            return Ok(canonical(&Config { lm_head: false, ..config }));
        }
        if self.has_usual_head(&config) {
            return Ok(config);
        }
        let (found, name) = (config.activation, self.name());
        refuse(format!(
            "the activation is {found}, but that of {name}'s head is always gelu-erf: limpid has one activation for \
             both"
        ))
    }

    /// Whether the head's activation is that of the blocks.
    fn has_usual_head(&self, c: &Config) -> bool {
        !self.head_gelu || !c.lm_head || c.activation == Activation::GeluErf
    }

    /// A stored name without the prefixes that programs put before it, in today's spelling.
    pub(crate) fn bare(&self, stored: &str) -> String {
        let mut name = stored.replace("_orig_mod.", "");
        for prefix in ["module.", self.prefix] {
            name = name.strip_prefix(prefix).map_or(name.clone(), String::from);
        }
        // transformers has one name for all heads, and reads GPT-NeoX's older one
        if name == "lm_head.weight" && rows::rows(self.head).any(|row| row.theirs == "embed_out.weight") {
            return "embed_out.weight".into();
        }
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    }

    /// What all its models have.
    pub(super) fn plain(&self) -> Config {
        plain(self.always, self.pairs)
    }

    /// A config.json, to be read as one of its models'.
    pub(super) fn keys_in<'a>(&self, map: &'a Map<String, Value>) -> Keys<'a> {
        Keys { usual: self.usual, ..Keys::new(map) }
    }

    /// Reads the keys of a configuration, which is not checked yet; gives those that say nothing to limpid, too.
    pub(super) fn read(&self, keys: &Keys) -> Answer<(Config, Vec<String>)> {
        let mut c = self.plain();
        self.keys.iter().try_for_each(|key| key.read(keys, &mut c))?;
        Ok((c, keys.rest()))
    }

    /// Whether it asks for a key that says something in its models.
    pub(super) fn asks(&self, key: &str) -> bool {
        let nothing = Map::new();
        let (keys, mut c) = (self.keys_in(&nothing), self.plain());
        self.keys.iter().for_each(|key| _ = key.read(&keys, &mut c));
        keys.asked.borrow().contains(key) && !keys.idle.borrow().contains(key)
    }

    /// The keys of a configuration, as far as it has them.
    pub(super) fn write(&self, c: &Config) -> Map<String, Value> {
        let rotary_dim = Some(c.rotary_dim.unwrap_or(c.d_head()));
        let whole = Config { rotary_dim, ..with_consequences(c) };
        let entries = self.keys.iter().flat_map(|key| key.write(&whole));
        entries.map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// The configuration that says of `c` what can be said here, what it lacks (what comes back otherwise when the keys
    /// are written and read), and whether it has more than `c`.
    pub(super) fn candidate(&self, c: &Config) -> (Config, Complaints, bool) {
        let (mut not, mine) = (common(c), canonical(c));
        let map = self.write(&mine);
        let read = self.read(&self.keys_in(&map)).and_then(|(theirs, _)| checked(&theirs));
        let Ok(theirs) = read else {
            not.unless(false, "a setting that its configuration has no value for", "");
            return (mine, not, false);
        };
        let headless = !mine.lm_head && !self.headless.is_empty();
        let theirs = canonical(&Config { lm_head: theirs.lm_head && !headless, dropout: mine.dropout, ..theirs });
        let more = not.differences(&mine, &theirs);
        let activation = format!("activation {} in the head", mine.activation);
        not.unless(self.has_usual_head(&mine), activation, "activation gelu-erf");
        (Config { dropout: c.dropout, ..theirs }, not, more)
    }
}

/// A configuration that a model can have, in the form in which configurations are compared.
pub(super) fn checked(c: &Config) -> Answer<Config> {
    c.check()?;
    Ok(canonical(c))
}

impl Dialect for &'static Family {
    fn links(&self, model: &Model) -> Vec<Link> {
        rows::links(self.tensors.iter().chain([&self.head]), self.pairs, model)
    }

    /// Old files also carry masks and index tables, poolers and other heads, and copies of a tied table.
    fn canonical(&self, stored: &str, config: &Config) -> Option<String> {
        let name = self.bare(stored);
        let is_copy = |(copy, _): &(&str, &str)| name == *copy && (config.tied_head || copy.ends_with(".bias"));
        let is_idle = |pattern: &&str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(start)) => name.starts_with(start),
            _ => name == **pattern,
        };
        let headless = || !config.lm_head && rows::rows(self.head).any(|row| row.has(&name));
        let none = self.copies.iter().any(is_copy) || self.idle.iter().any(is_idle) || headless();
        (!none && !name.ends_with(".rotary_emb.inv_freq")).then_some(name)
    }

    fn full(&self, name: &str, config: &Config) -> String {
        let head = rows::rows(self.head).any(|row| row.has(name));
        if head || !config.lm_head { name.into() } else { format!("{}{name}", self.prefix) }
    }

    fn model_type(&self) -> Option<&'static str> {
        Some(self.kind())
    }

    fn is_transposed(&self) -> bool {
        self.tensors.iter().any(|table| table.contains(":transposed"))
    }
}
