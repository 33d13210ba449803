//! The commands of a step for the model and the texts that the walk is on. They are written for the walk's own; on
//! others a text, an id, a head is one that the model has, and a command that it cannot run is left out.

use super::{At, Live, Made, Ready, Result, Show, WalkStep};
use limpid::generate::example;
use limpid_base::words::quoted;
use limpid_core::config::{Config, Fields, Mask, Positions, Settings};
use limpid_core::model::{Mode, Model};
use limpid_trace::names;

impl Live {
    /// A step with the commands that run here; those of its pictures are empty where the model cannot draw them.
    ///
    /// # Errors
    /// If the model cannot be made or opened.
    pub fn fitted(&mut self, step: &WalkStep) -> Result<WalkStep> {
        let mut step = step.clone();
        if !self.is_other() {
            return Ok(step);
        }
        let (default, models) = (self.walk().default_model().id.clone(), self.walk().models.clone());
        let model = self.options.model.as_ref().map(quoted);
        let mut fit = |command: &str, refused: bool| -> Result<Option<String>> {
            let words = words(command);
            let folder = |made: &&Made| place(&words, made.folder()).is_some();
            let verbs = ["inspect", "eval", "generate", "params", "convert"];
            let looks = words.get(1).is_some_and(|verb| verbs.contains(&verb.as_str())) || words[0] == "printf";
            let Some(made) = models.iter().find(folder).filter(|_| looks) else { return Ok(Some(command.into())) };
            // the walk's own model runs its own commands, the user's stands for all
            let on = Some(made.id.clone()).filter(|id| model.is_none() && *id != default);
            let ready = self.ready(&At { on, ..At::default() })?;
            let kin = model.is_none() || self.walk().differences(&ready.config)?.is_empty();
            let fit =
                Fit { ready: &ready, own: made.folder(), model: model.as_deref(), prompts: &self.options.prompts, kin };
            Ok(fit.command(words, refused))
        };
        let each = |all: Vec<String>, fit: &mut dyn FnMut(&str) -> Result<Option<String>>| -> Result<Vec<String>> {
            all.iter().map(|command| fit(command)).filter_map(Result::transpose).collect()
        };
        step.commands = each(step.commands, &mut |command| fit(command, false))?;
        step.refused = each(step.refused, &mut |command| fit(command, true))?;
        for view in &mut step.views {
            if let Show::Picture { command, .. } = view {
                *command = fit(command, false)?.unwrap_or_default();
            }
        }
        Ok(step)
    }
}

/// The words of a command; double quotes keep blanks in one.
pub(super) fn words(command: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for c in command.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => all.push(String::new()),
            c => all.last_mut().expect("there is a word").push(c),
        }
    }
    all
}

/// Where a command has a folder as its model.
fn place(words: &[String], folder: &str) -> Option<usize> {
    let of = |two: &[String]| ["--model", "convert"].contains(&two[0].as_str()) && two[1] == folder;
    words.windows(2).position(of).map(|at| at + 1)
}

/// A word of a command, for a shell.
fn word(text: &str) -> String {
    match text {
        "&&" | ">" => text.into(),
        _ if text.starts_with("--") => text.into(),
        _ if text.starts_with('\'') && text.ends_with('\'') => text.into(),
        _ if quoted(text) != text && !text.contains(['"', '$', '`', '\\', '!']) => format!("\"{text}\""),
        _ => quoted(text),
    }
}

/// What a command is fitted to.
struct Fit<'a> {
    ready: &'a Ready,
    /// The folder that the command is written for.
    own: &'a str,
    /// The user's model, as a word of a command.
    model: Option<&'a str>,
    prompts: &'a [String],
    /// Whether the model is of the walk's kind.
    kin: bool,
}

/// Settings that a model can be looked at with, whatever its weights.
const FREE: [&str; 5] = ["positions", "norm", "mask", "activation", "attention-scale"];

/// What a model runs on in a command.
enum Input {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Fit<'_> {
    /// The command as it runs here, if it does.
    fn command(&self, words: Vec<String>, refused: bool) -> Option<String> {
        let at = words.iter().position(|word| word == "limpid")?;
        let verb = words.get(at + 1)?.clone();
        let (before, mut words) = (words[..at].to_vec(), words[at..].to_vec());
        match verb.as_str() {
            "inspect" => self.inspect(&mut words, refused)?,
            "eval" => self.eval(&mut words)?,
            "generate" => self.generate(&mut words)?,
            "convert" if !self.kin => return None,
            _ => {}
        }
        let own = place(&words, self.own);
        let theirs = |at: usize| self.model.filter(|_| Some(at) == own).map(String::from);
        let shown: Vec<String> =
            words.iter().enumerate().map(|(at, text)| theirs(at).unwrap_or_else(|| word(text))).collect();
        let mask = if before.is_empty() { String::new() } else { self.mask_file(&words) };
        Some(mask + &shown.join(" "))
    }

    /// What writes a mask for the command's text: each token sees the first and itself.
    fn mask_file(&self, words: &[String]) -> String {
        let texts: Vec<&String> = words.windows(2).filter(|two| two[0] == "--prompt").map(|two| &two[1]).collect();
        let n = texts.first().and_then(|text| self.ids(text)).map_or(self.length(), |ids| ids.len());
        let row = |i: usize| (0..n).map(|j| if j == 0 || j == i { "1" } else { "0" }).collect::<Vec<_>>().join(" ");
        let rows: String = (0..n).map(|i| row(i) + "\\n").collect();
        format!("printf '{rows}' > mask.txt && ")
    }

    /// Whether the model is of the walk's kind, and shown on the walk's text.
    fn knows_the_text(&self) -> bool {
        self.kin && self.prompts.is_empty() && self.ready.notes.is_empty()
    }

    fn length(&self) -> usize {
        self.ready.sequences.first().map_or(1, Vec::len)
    }

    /// The ids of a text, if the model takes it.
    fn ids(&self, text: &str) -> Option<Vec<u32>> {
        let c = &self.ready.config;
        let ids = self.ready.ids(text).ok()?;
        let fits =
            !ids.is_empty() && ids.len() <= c.context_length && ids.iter().all(|id| (*id as usize) < c.vocab_size);
        fits.then_some(ids)
    }

    /// Whether a command can have the text as a word.
    fn typed(text: &str) -> bool {
        !text.starts_with(['-', '@']) && !text.chars().any(char::is_control)
    }

    /// What takes the place of so many texts of the walk: they, the user's, or the ids that the walk shows instead.
    fn input(&self, texts: &[String]) -> Input {
        let several = texts.len() > 1;
        if !self.prompts.is_empty() {
            let shown = if several { self.prompts } else { &self.prompts[..1] };
            return if shown.iter().all(|text| Self::typed(text)) {
                Input::Texts(shown.to_vec())
            } else {
                self.shown(several)
            };
        }
        let ids: Option<Vec<Vec<u32>>> = texts.iter().map(|text| self.ids(text)).collect();
        match ids {
            Some(ids) if !ids.is_empty() && ids.iter().all(|own| own.len() == ids[0].len()) => {
                Input::Texts(texts.to_vec())
            }
            _ => self.shown(several),
        }
    }

    /// The ids that the walk shows.
    fn shown(&self, several: bool) -> Input {
        let all = &self.ready.sequences;
        Input::Ids(all[..if several { all.len() } else { all.len().min(1) }].to_vec())
    }

    /// Takes a flag with its values out of a command.
    fn take(words: &mut Vec<String>, flag: &str) -> Vec<String> {
        let mut all = vec![];
        while let Some(at) = words.iter().position(|word| word == flag).filter(|at| at + 1 < words.len()) {
            all.push(words.remove(at + 1));
            words.remove(at);
        }
        all
    }

    /// Puts what the model runs on behind the model; gives how many tokens a sequence has.
    fn put(&self, words: &mut Vec<String>, texts: &[String], what: Input) -> usize {
        let at = place(words, self.own).map_or(words.len(), |at| at + 1);
        let (flags, n): (Vec<String>, usize) = match what {
            Input::Texts(texts) => {
                let n = texts.first().and_then(|text| self.ids(text)).map_or(0, |ids| ids.len());
                (texts.into_iter().flat_map(|text| ["--prompt".into(), text]).collect(), n)
            }
            Input::Ids(all) => {
                let list = |ids: &Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                let n = all.first().map_or(0, Vec::len);
                (vec!["--tokens".into(), all.iter().map(list).collect::<Vec<_>>().join(";")], n)
            }
        };
        let initial = words.get(at).is_some_and(|word| word == "--initial");
        let at = at + usize::from(initial && !texts.is_empty());
        words.splice(at..at, flags);
        n
    }

    fn inspect(&self, words: &mut Vec<String>, refused: bool) -> Option<()> {
        let c = &self.ready.config;
        let has = |words: &[String], flag: &str| words.iter().any(|word| word == flag);
        if refused {
            // an id beyond the vocabulary
            let ids = Self::take(words, "--tokens");
            let n = ids.first()?.split(',').count().min(c.context_length);
            let mut ids: Vec<Vec<u32>> = vec![(0..n as u32).collect()];
            *ids[0].last_mut()? = c.vocab_size as u32;
            self.put(words, &[], Input::Ids(ids));
            return Some(());
        }
        if has(words, "--initial") && self.ready.began.is_none() || has(words, "--masks") && c.mask != Mask::Causal {
            return None;
        }
        let windows_stay = has(words, "--data") && self.knows_the_text();
        let (texts, tokens) = (Self::take(words, "--prompt"), Self::take(words, "--tokens"));
        let data = if windows_stay { vec![] } else { Self::take(words, "--data") };
        let windows = if data.is_empty() { vec![] } else { Self::take(words, "--batch-size") };
        let windows: usize = windows.first().and_then(|n| n.parse().ok()).unwrap_or(4);
        let segments = Self::take(words, "--segments");
        let mut n = 0;
        if let Some(ids) = tokens.first() {
            let most = c.vocab_size as u32 - 1;
            let ids: Vec<u32> = ids.split(',').filter_map(|id| id.parse().ok()).map(|id: u32| id.min(most)).collect();
            n = self.put(words, &texts, Input::Ids(vec![ids[..ids.len().min(c.context_length)].to_vec()]));
        } else if windows_stay {
            n = self.length();
        } else if !data.is_empty() {
            let what = if self.prompts.is_empty() {
                self.shown(windows > 1)
            } else {
                self.input(&vec![String::new(); windows])
            };
            n = self.put(words, &data, what);
        } else if !texts.is_empty() {
            let what = self.input(&texts);
            n = self.put(words, &texts, what);
        }
        if !segments.is_empty() && c.n_segment > 0 {
            let own: Vec<&str> = (0..n).map(|i| if i + 1 == n { "1" } else { "0" }).collect();
            words.extend(["--segments".into(), own.join(",")]);
        }
        let config = self.changed(words)?;
        let model = Model::new(&config, Mode::Inspect { batch: 1, context: n.max(1) }).ok()?;
        self.tensors(words, &model, n)?;
        if let Some(at) = words.iter().position(|word| word == "--similar")
            && self.ids(&words[at + 1]).is_none_or(|ids| ids.len() != 1)
        {
            words[at + 1] = self.ready.sequences.first()?.first()?.to_string();
        }
        let predicts = ["--next", "--backward", "loss"].iter().any(|word| has(words, word));
        let learns = has(words, "--backward") || has(words, "loss") || words.iter().any(|word| word.ends_with(".grad"));
        let targets = n > 1 || c.mask != Mask::Causal;
        (!(predicts || learns) || c.lm_head).then_some(()).filter(|()| !learns || targets)
    }

    /// The configuration with the settings that a command changes, if the model has weights for that.
    fn changed(&self, words: &[String]) -> Option<Config> {
        let mut config = self.ready.config.clone();
        for two in words.windows(2) {
            let Some(name) = two[0].strip_prefix("--") else { continue };
            let name = name.replace('-', "_");
            if config.fields().iter().any(|(setting, _)| setting.name == name) {
                config.set(&name, &two[1]).ok()?;
                let free = FREE.iter().any(|free| free.replace('-', "_") == name);
                let learned = [&config, &self.ready.config].map(|c| c.positions == Positions::Learned);
                if !free || name == "positions" && learned != [false; 2] {
                    return None;
                }
            }
        }
        Some(config)
    }

    /// Leaves out tensors that the model lacks, and heads; none if nothing is left of what the command shows.
    fn tensors(&self, words: &mut Vec<String>, model: &Model, n: usize) -> Option<()> {
        let there = |name: &str| {
            let base = name.strip_suffix(".grad").unwrap_or(name);
            base == "input"
                || model.tensor(base).is_some()
                || model.param(base).is_some()
                || names::derivation(model, base).is_some()
                || names::drawn(model).iter().any(|(own, ..)| own == base)
        };
        for flag in ["--tensor", "--plot"] {
            let mut left = 0;
            let mut at = 0;
            let asked = words.iter().filter(|word| *word == flag).count();
            while at + 1 < words.len() {
                let name = words[at + 1].split('[').next().unwrap_or_default();
                let known = ["gelu", "loss"].contains(&name) && flag == "--plot" || there(name);
                match words[at] == flag {
                    true if known => (left, at) = (left + 1, at + 2),
                    true if flag == "--plot" => return None, // it has a file
                    true => drop(words.drain(at..at + 2)),
                    false => at += 1,
                }
            }
            if asked > 0 && left == 0 {
                return None;
            }
        }
        if words.iter().any(|word| word == "--diagram")
            && n == 0
            && words.iter().any(|word| ["input", "loss"].contains(&word.as_str()))
        {
            return None;
        }
        if let Some(at) = words.iter().position(|word| word == "--head") {
            let shared = words
                .windows(2)
                .any(|two| two[0] == "--tensor" && ["_k", "_v", "W_K", "W_V"].iter().any(|end| two[1].ends_with(end)));
            let heads = model.config.heads();
            let most = if shared { heads.n_kv_head } else { heads.n_head };
            words[at + 1] = words[at + 1].parse::<usize>().ok()?.min(most - 1).to_string();
        }
        Some(())
    }

    /// The first of the texts that a command may have that the model knows.
    fn text(&self, texts: &[String]) -> Option<String> {
        let own = if self.prompts.is_empty() { texts } else { self.prompts };
        let other = || example(self.ready.tokenizer.as_ref()?, &self.ready.config).filter(|_| self.prompts.is_empty());
        let known = |text: &String| Self::typed(text) && self.ids(text).is_some();
        own.iter().find(|text| known(text)).cloned().or_else(|| other().filter(known))
    }

    fn eval(&self, words: &mut [String]) -> Option<()> {
        let c = &self.ready.config;
        let has_head = c.lm_head && c.mask == Mask::Causal;
        if words.iter().any(|word| word == "--data") {
            return ((self.model.is_none() || self.knows_the_text()) && has_head).then_some(());
        }
        let at = words.iter().position(|word| word == "--continuation")?;
        let both = format!("{}{}", words[at - 1], words[at + 1]);
        let whole = if self.prompts.is_empty() && [at - 1, at + 1].iter().all(|at| self.ids(&words[*at]).is_some()) {
            return has_head.then_some(());
        } else {
            self.text(&[both])?
        };
        let (before, last) = whole.rsplit_once(' ').filter(|(before, _)| !before.trim().is_empty())?;
        let last = format!(" {last}");
        let tokens = self.ids(before)?.len() + self.ids(&last)?.len();
        (words[at - 1], words[at + 1]) = (before.into(), last);
        (has_head && tokens <= c.context_length).then_some(())
    }

    fn generate(&self, words: &mut Vec<String>) -> Option<()> {
        let c = &self.ready.config;
        let text = self.text(&Self::take(words, "--prompt"))?;
        let masked = || self.ready.mask().is_some_and(|mask| self.ids(&text).is_some_and(|ids| ids.contains(&mask)));
        if !c.lm_head || c.mask != Mask::Causal && !masked() {
            return None;
        }
        if c.mask != Mask::Causal {
            // it fills masks, and takes nothing else
            ["--temperature", "--max-tokens", "--num-samples", "--overflow"]
                .iter()
                .for_each(|flag| drop(Self::take(words, flag)));
            words.retain(|word| word != "--trace");
        }
        self.put(words, &[], Input::Texts(vec![text]));
        Some(())
    }
}
