//! What the units of MLPs respond to: the places of a held-out text where each is most active, and what it writes
//! there. Read `trace::mlp` for the units at one position of one text.
//!
//! Finding them runs the text once, for all units together. They are kept in a file beside the model, if one can be
//! written there, so the next question about any unit has its answer at once.

use crate::Lm;
use crate::checkpoint::write_text;
use crate::data::source::TextSource;
use crate::error::{Error, Result};
use crate::receipt::sha256;
use crate::tokenizer::Tokenizer;
use crate::trace::mlp::{UnitWords, unit_words};
use crate::trace::{Keep, TraceError};
use limpid_base::budget::{Budget, Spent};
use limpid_base::files::read_text;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// The most tokens that are read.
pub const UNIT_TOKENS: usize = 4096;
/// The most tokens of a window: each begins anew.
const WINDOW: usize = 256;
/// The places that are kept for each unit.
const PLACES: usize = 8;
/// The tokens that are shown before a place, and after it.
const AROUND: [usize; 2] = [12, 4];
/// The words that a unit raises, and lowers.
const WORDS: usize = 8;
/// The largest file that is read.
const LARGEST: u64 = 1 << 30;

/// A text that units are looked for in.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitText {
    name: String,
    tokens: Vec<u32>,
}

impl UnitText {
    /// The first [`UNIT_TOKENS`] of these tokens; the name is for people.
    pub fn new(name: impl Into<String>, mut tokens: Vec<u32>) -> UnitText {
        tokens.truncate(UNIT_TOKENS);
        UnitText { name: name.into(), tokens }
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Built-in stories that no training of limpid has seen.
    ///
    /// # Errors
    /// If the tokenizer has no tokens for them.
    pub fn stories(tokenizer: &Tokenizer) -> Result<UnitText> {
        let (all, _) = TextSource::new("builtin:stories").whole(tokenizer)?;
        let mut tokens = vec![];
        all.copy(0..UNIT_TOKENS.min(all.len()), &mut tokens);
        Ok(UnitText::new("stories that no training has seen", tokens))
    }
}

/// Where the units of every layer respond most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitPlaces {
    /// What they were made from.
    limpid_units: String,
    /// What was read.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its windows have so many tokens, the last one fewer.
    pub window: usize,
    /// By layer and unit.
    layers: Vec<Vec<UnitPlace>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct UnitPlace {
    /// At how many tokens its activation is positive.
    fires: usize,
    /// Tokens, by place, and the activation there, the one of the greatest magnitude first.
    most: Vec<(u32, f32)>,
}

/// A place where a unit responds.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitContext {
    /// The tokens round it.
    pub tokens: Vec<u32>,
    /// Which of them it responds to.
    pub at: usize,
    /// Where that one is in the text.
    pub position: usize,
    /// Its activation there, after the gate where there is one.
    pub value: f32,
}

/// What is known of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitPage {
    /// The layer.
    pub layer: usize,
    /// The unit.
    pub unit: usize,
    /// At how many tokens of the text its activation is positive.
    pub fires: usize,
    /// Where it responds most, the greatest activation first.
    pub contexts: Vec<UnitContext>,
}

impl UnitPage {
    /// Its name, such as `L0U63`.
    pub fn name(&self) -> String {
        format!("L{}U{}", self.layer, self.unit)
    }
}

impl UnitPlaces {
    /// What is known of a unit.
    ///
    /// # Errors
    /// If there is no such layer or unit.
    pub fn page(&self, layer: usize, unit: usize) -> Result<UnitPage> {
        let no = |what: &str, n: usize, count: usize| {
            let what = format!("there is no {what} {n}: the model has {count}, counted from 0");
            Error::from(TraceError::Batch { what })
        };
        let units = self.layers.get(layer).ok_or_else(|| no("layer", layer, self.layers.len()))?;
        let own = units.get(unit).ok_or_else(|| no("unit", unit, units.len()))?;
        let context = |&(position, value): &(u32, f32)| {
            let (position, [before, after]) = (position as usize, AROUND);
            let start = position / self.window * self.window;
            let from = start.max(position.saturating_sub(before));
            let to = (position + after + 1).min(start + self.window).min(self.tokens.len());
            UnitContext { tokens: self.tokens[from..to].to_vec(), at: position - from, position, value }
        };
        Ok(UnitPage { layer, unit, fires: own.fires, contexts: own.most.iter().map(context).collect() })
    }

    /// Takes a window's activations (T, F) of a layer, whose first token is `first`.
    fn take(&mut self, layer: usize, first: usize, activations: &[f32]) {
        let units = &mut self.layers[layer];
        for (row, values) in activations.chunks_exact(units.len()).enumerate() {
            for (own, value) in units.iter_mut().zip(values).filter(|(_, value)| value.is_finite()) {
                own.fires += usize::from(*value > 0.0);
                let smaller = |(_, other): &(u32, f32)| other.abs() < value.abs();
                let place = own.most.iter().position(smaller).unwrap_or(own.most.len());
                if place < PLACES && *value != 0.0 {
                    own.most.truncate(PLACES - 1);
                    own.most.insert(place, ((first + row) as u32, *value));
                }
            }
        }
    }

    /// That it is about the model and the text of this hash, and as large as it must be.
    fn fits(&self, made_from: &str, text: &UnitText, [n_layer, d_ff]: [usize; 2]) -> bool {
        let whole = self.layers.len() == n_layer && self.layers.iter().all(|units| units.len() == d_ff);
        let inside = |unit: &UnitPlace| unit.most.iter().all(|(at, _)| (*at as usize) < self.tokens.len());
        let sound = self.window > 0 && self.layers.iter().flatten().all(inside);
        self.limpid_units == made_from && self.tokens == text.tokens && whole && sound
    }
}

impl Lm {
    /// Bytes that [`UnitPlaces`] of this model take.
    pub fn unit_bytes(&self) -> usize {
        let of_unit = size_of::<UnitPlace>() + PLACES * size_of::<(u32, f32)>();
        self.config().n_layer * self.config().d_ff * of_unit + 4 * UNIT_TOKENS
    }

    /// Where the units of all layers respond most in a text, of the model without interventions. What was found for
    /// this model and this text before is read from [`Lm::units_file`], and what is found is written there; if no file
    /// can be written, nothing is.
    ///
    /// # Errors
    /// If the text is empty, the model has no MLP, or the budget is spent.
    pub fn unit_places(&self, text: &UnitText, budget: &Arc<Budget>) -> Result<UnitPlaces> {
        let (config, all) = (self.config(), text.tokens.len());
        let window = WINDOW.min(config.context_length);
        if all == 0 {
            return Err(Error::Empty);
        }
        let made_from = sha256(&json!([self.receipt_hashes()?, text.tokens, window, PLACES]).to_string());
        let file = self.units_file();
        let kept = file.as_ref().and_then(|file| read_text(file, LARGEST).ok());
        let read: Option<UnitPlaces> = kept.as_deref().and_then(|kept| serde_json::from_str(kept).ok());
        // a file of that name that somebody else made stays
        let may_write = file.as_ref().is_some_and(|file| read.is_some() || !file.exists());
        if let Some(read) = read.filter(|read| read.fits(&made_from, text, [config.n_layer, config.d_ff])) {
            return Ok(UnitPlaces { text: text.name.clone(), ..read });
        }
        let spent = |why: Spent| TraceError::Spent { what: "the units".into(), why };
        let bytes = self.unit_bytes() + self.trace_bytes(window.min(all), Keep::Blocks { seen: 0 })?;
        budget.take_bytes(bytes as u64).map_err(spent)?;
        let layers = vec![vec![UnitPlace::default(); config.d_ff]; config.n_layer];
        let (name, tokens) = (text.name.clone(), text.tokens.clone());
        let mut found = UnitPlaces { limpid_units: made_from, text: name, tokens, window, layers };
        let plain = self.without_interventions();
        for (n, ids) in text.tokens.chunks(window).enumerate() {
            let mut run = plain.trace_ids(ids, Keep::Blocks { seen: 0 })?;
            run.spend(budget);
            for layer in 0..config.n_layer {
                found.take(layer, n * window, &run.shared(&format!("blocks.{layer}.mlp.hook_post"))?.values);
            }
        }
        budget.give_bytes(bytes as u64);
        if let Some(file) = file.filter(|_| may_write) {
            let _ = write_text(&file, &json!(found).to_string()); // it is only kept to save time
        }
        Ok(found)
    }

    /// The file that [`Lm::unit_places`] is kept in: `units.json` in the model's folder, or beside its file. None of a
    /// model that is in no file.
    pub fn units_file(&self) -> Option<PathBuf> {
        let path = &self.checkpoint()?.path;
        if path.is_dir() {
            return Some(path.join("units.json"));
        }
        let mut name = path.file_name()?.to_os_string();
        name.push(".units.json");
        Some(path.with_file_name(name)).filter(|_| path.is_file())
    }

    /// What a unit writes where it responds most, as words; none of a unit that never responds, or a model without a
    /// head.
    ///
    /// # Errors
    /// As [`Lm::trace_ids`], and if the budget is spent.
    pub fn unit_writes(&self, places: &UnitPlaces, page: &UnitPage, budget: &Arc<Budget>) -> Result<UnitWords> {
        let Some(most) = page.contexts.first().filter(|_| self.config().lm_head) else {
            return Ok(UnitWords::default());
        };
        let start = most.position / places.window * places.window;
        let mut run = self.without_interventions().trace_ids(&places.tokens[start..=most.position], Keep::default())?;
        run.spend(budget);
        Ok(unit_words(&run, (page.layer, page.unit), most.position - start, WORDS)?)
    }
}
