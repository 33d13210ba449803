//! From settings to a training: those of a file or of a resumed run below what the caller gives, checked together and
//! resolved once.
//!
//! The command and the Python module share this road: each brings the layers that it has, and both get the same
//! [`Training`].

use super::Training;
use crate::checkpoint::Checkpoint;
use crate::config::{Config, ConfigError, Fields, Preset, Setting, Settings};
use crate::error::{Error, Result};
use crate::matrix::Precision;
use crate::settings::{
    BUILT_IN, JobSettings, LayeredSettings, MachineSettings, SAMPLE, SettingError, SettingsLayer, TextSettings,
    TuningSettings, Workflow, plain, read_text, refuse, wrong,
};
use crate::train::folder::{self, FolderContents};
use crate::train::{Recipe, Run, RunOptions, TrainError, WindowOrder};
use crate::{data, units};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a training is asked for, from all places together.
#[derive(Clone, Debug)]
pub struct TrainingJob {
    /// The text, the folder, the length.
    pub job: JobSettings,
    /// How the text is read.
    pub text: TextSettings,
    /// What learns.
    pub tuning: TuningSettings,
    /// The machine.
    pub machine: MachineSettings,
    /// All that was given: these, and settings of the model, the recipe and the run.
    pub settings: LayeredSettings,
    /// What the user should know of them.
    pub note: Option<String>,
}

impl TrainingJob {
    /// What these layers ask for, the lowest first. Below them are the settings of `config`, a file, or those of the
    /// run that they resume. `known` are the settings that a file may have
    /// ([`training_settings`](crate::settings::training_settings)).
    ///
    /// # Errors
    /// If a file cannot be read, a run cannot be resumed, or settings cannot be given so or together.
    pub fn new(layers: Vec<SettingsLayer>, config: Option<&Path>, known: &[&'static Setting]) -> Result<TrainingJob> {
        let given = LayeredSettings::new(layers);
        let (below, note) = lowest_layer(&given, config, known)?;
        let settings = LayeredSettings::new(below.into_iter().chain(given.layers).collect());
        settings.check()?;
        one_preset(&settings)?;
        let mut job = settings.over(&JobSettings::default())?;
        if let Some(name) = &mut job.preset {
            let wrong =
                |error| SettingError(format!("invalid value '{name}' for '{}': {error}", settings.place("preset")));
            Config::preset(name).map_err(wrong)?;
            *name = spelled(OsStr::new(name));
        }
        let machine = settings.checked(&MachineSettings::default())?;
        let text = settings.over(&TextSettings::default())?;
        let tuning = settings.over(&TuningSettings::default())?;
        Ok(TrainingJob { job, text, tuning, machine, settings, note })
    }

    /// The name of its text.
    pub fn data(&self) -> &str {
        self.job.data.as_deref().unwrap_or(BUILT_IN)
    }

    /// The preset that was chosen, or would be.
    fn preset(&self) -> &str {
        let usual = if self.job.recipe == Some(Workflow::Llmc) { "llmc-gpt2" } else { "nano" };
        self.job.preset.as_deref().unwrap_or(usual)
    }

    /// What the model is called: its preset, or the name of the one that is fine-tuned.
    pub fn name(&self) -> String {
        let stem = |from: &String| Path::new(from).file_stem().map(|name| name.to_string_lossy().into_owned());
        match &self.tuning.from {
            Some(from) => stem(from).unwrap_or_else(|| from.clone()),
            None => self.preset().into(),
        }
    }

    /// The folder that was named, if one was.
    pub fn named_folder(&self) -> Option<PathBuf> {
        named_folder(self.job.resume.as_deref(), self.job.out.as_deref())
    }

    /// The folder of a run that goes on: of one that was killed before its first save, all is done again.
    pub fn resumed(&self) -> Option<PathBuf> {
        self.job.resume.as_ref().and_then(|_| self.named_folder()).filter(|folder| Run::can_resume(folder))
    }

    /// The folder of the run: the one that was named, or runs/NAME-20261120-130155 after this time (UTC).
    ///
    /// # Errors
    /// If the time has no date of four digits.
    pub fn folder(&self, now: SystemTime) -> Result<PathBuf> {
        self.named_folder().map_or_else(|| dated_folder(&self.name(), now), Ok)
    }

    /// Refuses a folder in which no run can begin, before the text is read; one that holds more than a model even where
    /// it is forced. `home` is the user's.
    ///
    /// # Errors
    /// Says what the folder holds.
    pub fn check_folder(&self, folder: &Path, home: Option<PathBuf>) -> Result<()> {
        let JobSettings { resume, force, .. } = &self.job;
        let found = folder::look(folder);
        let shown = folder.display();
        if resume.as_ref().is_some_and(|resume| resume != "auto") && found != FolderContents::Begun {
            return Err(not_resumed(folder, "it has no state/last.safetensors (no step was saved there)"));
        }
        let free = matches!(found, FolderContents::Nothing | FolderContents::Begun);
        if !free && (!force || !found.is_replaced()) {
            return Err(TrainError::FolderNotEmpty { path: folder.into(), found }.into());
        }
        let home = home.and_then(|home| home.canonicalize().ok());
        let whole = folder.canonicalize().ok();
        let is_home = |path: &&PathBuf| path.parent().is_none() || home.as_ref() == Some(*path);
        if let Some(path) = whole.as_ref().filter(|path| !free && is_home(path)) {
            let path = path.display();
            return Err(Error::Refused(format!(
                "{path} holds more than a model, even with --force: choose a folder in it with --out"
            )));
        }
        let has_weights =
            ["model.safetensors", "adapter_model.safetensors"].iter().any(|name| folder.join(name).exists());
        if found == FolderContents::Begun && has_weights && resume.is_none() && !force {
            return Err(Error::Refused(format!(
                "{shown} already holds a run, which was killed before its first save: --resume {shown} begins it \
                 again, another --out starts a new one"
            )));
        }
        let from = self.tuning.from.as_ref().and_then(|from| std::fs::canonicalize(from).ok());
        if whole.is_some() && from == whole {
            return Err(Error::Refused(format!(
                "--from and --out are both {shown}: the original model is kept; choose another --out"
            )));
        }
        Ok(())
    }

    /// The model that it begins from, to be opened. A run that goes on has all of a model in its own folder, unless it
    /// trains an adapter.
    pub fn base(&self) -> Option<&Path> {
        let in_folder = self.tuning.lora.is_none() && self.resumed().is_some();
        self.tuning.from.as_deref().filter(|_| !in_folder).map(Path::new)
    }

    /// The configuration of the model and the settings of its training: what was given, over what is usual for a
    /// preset, or for fine-tuning a model that has `learned`.
    ///
    /// # Errors
    /// If a value is none, is out of its range, or would change a model that has learned.
    pub fn chosen(&self, learned: Option<&Config>) -> Result<(Config, Recipe, RunOptions)> {
        let llmc = (self.job.recipe == Some(Workflow::Llmc)).then(llmc).transpose()?;
        let (config, (recipe, options)) = match (learned, &self.tuning.from) {
            (Some(learned), Some(from)) => {
                let config = self.settings.config_of(from, learned)?;
                let adapter = self.tuning.lora.is_some();
                let fine_tuning = || (Recipe::fine_tuning(&config, adapter), RunOptions::fine_tuning());
                let (recipe, options) = llmc.unwrap_or_else(fine_tuning);
                let context = self.settings.config(learned)?.context_length.min(recipe.context);
                (config, (Recipe { context, ..recipe }, options))
            }
            _ => {
                let preset = || Ok::<_, Error>((Recipe::preset(self.preset())?, RunOptions::preset(self.preset())?));
                let usual = llmc.map_or_else(preset, Ok)?;
                (self.settings.config(&Config::preset(self.preset())?)?, usual)
            }
        };
        let (recipe, options) = (self.settings.over(&recipe)?, self.settings.over(&options)?);
        recipe.check().and_then(|()| options.check_ranges()).map_err(|error| self.settings.blame(error))?;
        Ok((config, recipe, options))
    }

    /// The training. `base` is the model of [`TrainingJob::base`], opened; its folder is named ([`Training::folder`])
    /// only where a run goes on.
    ///
    /// # Errors
    /// As [`TrainingJob::chosen`]; if the tokenizer is another than the model's, or a chat template cannot be read.
    pub fn training(&self, base: Option<Checkpoint>) -> Result<Training> {
        let TrainingJob { job, settings, .. } = self;
        if self.machine.precision == Precision::Int8 {
            let place = settings.place("precision");
            refuse!("{place} int8: products of integers have no gradient; training takes f32 or bf16");
        }
        if let Some(base) = base.as_ref().filter(|base| !base.config.lm_head) {
            return Err(Error::Refused(format!("{}: {}", base.path.display(), ConfigError::NoHead)));
        }
        let resumed = self.resumed();
        let learned = match (&base, &resumed) {
            (Some(base), _) => Some(base.config.clone()),
            (None, Some(folder)) if self.tuning.from.is_some() => Some(own_config(folder)?),
            _ => None,
        };
        let (config, recipe, options) = self.chosen(learned.as_ref())?;
        if resumed.as_ref().is_none_or(|folder| !folder.join("tokenizer.json").exists()) {
            self.check_tokenizer(base.as_ref())?;
        }
        let mut source = self.text.source(self.data(), &self.machine);
        source.tokenizer.clone_from(&job.tokenizer);
        source.default_tokenizer = default_tokenizer(self.data(), &self.name()).into();
        const MAY_CHANGE: [&str; 6] =
            ["whole_documents", "cross_documents", "warmup_steps", "val_fraction", "eval_every", "patience"];
        let mut keeps: Vec<&str> = MAY_CHANGE.into_iter().filter(|name| settings.has(name)).collect();
        if learned.is_some() || settings.has("vocab_size") {
            keeps.push("vocab_size");
        }
        if job.probe_text.is_some() && !options.probe {
            refuse!("--probe-text is what --probe looks at: give --probe too");
        }
        let mut noted = vec![("probe_text", job.probe_text.clone().unwrap_or_default())];
        if job.sample != SAMPLE {
            noted.push(("sample", job.sample.to_string()));
        }
        let mut chat_template = None;
        if let Some(file) = &job.chat_template {
            let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            noted.push(("chat_template", path.display().to_string()));
            // a run has its template in its folder
            if resumed.is_none() {
                let read = data::read_text(file, data::source::HELD);
                chat_template = Some(read.map_err(|error| Error::Refused(format!("--chat-template: {error}")))?);
            }
        }
        let lengths = [job.epochs.0.is_some(), settings.has("steps"), job.recipe.is_some(), resumed.is_some()];
        let training = match base {
            Some(base) => Training::fine_tuning(base.into()),
            None => Training::new(config.clone(), recipe),
        };
        Ok(Training {
            // a model that is trained on is no preset
            preset: if learned.is_none() { self.name() } else { String::new() },
            config,
            recipe,
            options,
            source,
            epochs: job.epochs.0,
            fits_text: !lengths.contains(&true),
            tuning: self.tuning.tuning(),
            chat_template,
            special_tokens: job.add_special_tokens.clone(),
            probe_text: job.probe_text.clone(),
            keeps,
            noted,
            resume: resumed.is_some(),
            folder: resumed,
            force: job.force,
            resume_step: job.resume_step,
            memory: job.memory.0,
            machine: self.machine.machine(),
            device_auto: self.machine.device.device.is_none(),
            ..training
        })
    }

    /// Refuses another tokenizer for a model that has its own, and none for one that has none.
    fn check_tokenizer(&self, base: Option<&Checkpoint>) -> Result<()> {
        let own = base.and_then(|base| base.tokenizer.as_ref());
        match (base, own, &self.job.tokenizer) {
            (_, Some(own), Some(_)) => {
                let place = self.settings.place("tokenizer");
                refuse!("{place} cannot be chosen: the model comes with its own, {}", own.name())
            }
            (Some(base), None, None) => Err(Error::Refused(format!(
                "{} has no tokenizer: name its own with --tokenizer NAME|FILE",
                base.path.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// A preset's name as it is written down.
fn spelled(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase().replace('_', "-")
}

fn not_resumed(folder: &Path, why: &'static str) -> Error {
    Error::NotResumed { folder: folder.into(), why }
}

/// The configuration that a run keeps in its folder.
fn own_config(folder: &Path) -> Result<Config> {
    let path = folder.join("config.json");
    Config::from_json(&read_text(&path)?).map_err(|error| wrong(&path, &error))
}

/// The tokenizer that suits the text and the preset: its document's own, or byte pairs, which know every text and which
/// other programs read (docs/presets.md).
fn default_tokenizer(data: &str, preset: &str) -> &'static str {
    match Preset::named(preset).map_or("bpe", |preset| preset.tokenizer) {
        "gpt2" if data.starts_with("builtin:") => "bpe",
        suits => suits,
    }
}

/// The folder that `resume` and `out` name.
fn named_folder(resume: Option<&str>, out: Option<&Path>) -> Option<PathBuf> {
    match resume {
        Some("auto") => out.map(PathBuf::from).or_else(newest_run),
        Some(folder) => Some(folder.into()),
        None => out.map(PathBuf::from),
    }
}

/// The folder that is named after the time: 20261120-130155 (UTC).
fn dated_folder(name: &str, now: SystemTime) -> Result<PathBuf> {
    if !units::has_date(now) {
        return Err(Error::Refused(
            "the clock of this machine is before 1970 or after 9999, and the run's folder would be named after it: \
             set the clock, or give --out"
                .into(),
        ));
    }
    let time = humantime::format_rfc3339_seconds(now).to_string();
    let time = time.replace(['-', ':', 'Z'], "").replace('T', "-");
    let first = PathBuf::from("runs").join(format!("{name}-{time}"));
    let next = (2..).map(|n| first.with_file_name(format!("{name}-{time}-{n}")));
    Ok(std::iter::once(first.clone()).chain(next).find(|path| !path.exists()).unwrap_or(first))
}

/// The newest run under runs/ that can go on, or that began and was killed before its first save.
fn newest_run() -> Option<PathBuf> {
    let runs = std::fs::read_dir("runs").ok()?.flatten().map(|entry| entry.path());
    let begun = |path: &PathBuf| path.join("limpid.toml").exists() && folder::look(path) == FolderContents::Begun;
    let time = |file: PathBuf| file.metadata().and_then(|m| m.modified()).ok();
    runs.filter(|path| Run::can_resume(path) || begun(path))
        .max_by_key(|path| time(path.join("state/last.safetensors")).max(time(path.join("limpid.toml"))))
}

/// The settings of a file, else of the run that is resumed; and that there is no such run, which is told.
fn lowest_layer(
    given: &LayeredSettings,
    config: Option<&Path>,
    known: &[&'static Setting],
) -> Result<(Option<SettingsLayer>, Option<String>)> {
    let of_file = || config.map(|path| SettingsLayer::read(path, known)).transpose();
    let job = given.over(&JobSettings::default())?;
    let Some(resume) = job.resume.as_deref() else { return Ok((of_file()?, None)) };
    if resume.is_empty() {
        refuse!("{} needs a value: auto, or the folder of a run", given.place("resume"));
    }
    let folder = named_folder(Some(resume), job.out.as_deref());
    let begun = |folder: &PathBuf| folder.join("limpid.toml").exists();
    match folder.filter(|folder| resume != "auto" || begun(folder)) {
        None => {
            let note = begins_anew(given, &job, config.is_some())?;
            Ok((of_file()?, Some(note)))
        }
        Some(folder) if !folder.exists() => Err(not_resumed(&folder, "there is no such folder")),
        Some(folder) if !begun(&folder) => Err(not_resumed(&folder, "it has no limpid.toml, so no run began there")),
        Some(_) if config.is_some() => Ok((of_file()?, None)),
        Some(folder) => {
            let mut layer = SettingsLayer::read(&folder.join("limpid.toml"), known)?;
            same_as_begun(&folder, &layer, given)?;
            // what was chosen anew when it went on before stays chosen
            if let Some((recipe, options)) = Run::settings(&folder, job.resume_step)? {
                let steps = recipe.fields().into_iter().filter(|(setting, _)| setting.name == "steps");
                for (setting, value) in steps.chain(options.fields()) {
                    let found = layer.values.iter_mut().find(|(other, _)| other.name == setting.name);
                    found.into_iter().for_each(|(_, text)| *text = plain(&value.json()).into());
                }
            }
            Ok((Some(layer), None))
        }
    }
}

/// The settings of llm.c's train_gpt2: its preset's, with a step more (it counts from 0 to 40) and its shuffled
/// batches.
fn llmc() -> Result<(Recipe, RunOptions)> {
    let recipe = Recipe { steps: 41, windows: WindowOrder::Shuffled, ..Recipe::preset("llmc-gpt2")? };
    Ok((recipe, RunOptions::preset("llmc-gpt2")?))
}

/// Refuses to go on with a run otherwise than it began.
fn same_as_begun(folder: &Path, begun: &SettingsLayer, given: &LayeredSettings) -> Result<()> {
    for SettingsLayer { origin, values } in &given.layers {
        for (Setting { name, .. }, is) in values.iter().filter(|(setting, _)| setting.fixed) {
            let was = begun.get(name);
            let is_path = |was: &OsStr| std::path::absolute(is).is_ok_and(|path| path == was);
            let same = |was: &OsStr| was == is || is_path(was) || Path::new(is).file_name() == Some(was);
            if !was.is_some_and(same) {
                let was = was.map_or("none".into(), OsStr::to_string_lossy);
                let (is, place, folder, out) = (is.display(), origin.name(name), folder.display(), origin.name("out"));
                refuse!(
                    "{place} {is}: the run in {folder} began with another one ({name} in its limpid.toml: {was}) and \
                     keeps it; another {out} starts a new run"
                );
            }
        }
    }
    Ok(())
}

/// Whether a table has a setting of this name.
fn has_choice<S: Settings>(name: &str) -> bool {
    S::default().choices().iter().any(|(setting, _)| setting.name == name)
}

/// Refuses `resume auto` where there is no run, unless the settings say what a new run is: with them it can begin,
/// without them it would be another run than the one that is meant.
fn begins_anew(given: &LayeredSettings, job: &JobSettings, has_file: bool) -> Result<String> {
    let place = job.out.as_ref().map_or("the folder runs/ here".into(), |out| out.display().to_string());
    // a run may go on with other steps
    let of_recipe = |name: &str| name != "steps" && has_choice::<Recipe>(name);
    let begins = |Setting { name, fixed, .. }: &Setting| {
        *fixed || ["data", "preset"].contains(name) || of_recipe(name) || has_choice::<Config>(name)
    };
    if !has_file && !given.layers.iter().flat_map(|layer| &layer.values).any(|(setting, _)| begins(setting)) {
        refuse!(
            "--resume auto: {place} holds no run to resume: name its folder with --resume DIR, or say what a new run \
             trains on, such as --data FILE"
        );
    }
    Ok(format!("{place} holds no run to resume: a new one begins"))
}

/// Refuses a preset over settings of a model that were made for another: they would leave nothing of it.
fn one_preset(settings: &LayeredSettings) -> Result<()> {
    for (height, layer) in settings.layers.iter().enumerate() {
        let below = || settings.layers[..height].iter().rev();
        let other = below().find_map(|layer| Some((&layer.origin, spelled(layer.get("preset")?))));
        let (Some(is), Some((origin, was))) = (layer.get("preset").map(spelled), other) else { continue };
        let mut names = below().flat_map(|layer| &layer.values).map(|(setting, _)| setting.name);
        if is != was
            && let Some(name) = names.find(|name| has_choice::<Config>(name))
        {
            let (place, other) = (layer.origin.name("preset"), origin.name("preset"));
            refuse!(
                "{place} {is}: {other} is another, {was}, with settings of its own ({name}, ...), which would remain: \
                 leave one of the two presets out"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_that_is_not_set_is_told() {
        let [second, days] = [1, 3_000_000 * 86_400].map(Duration::from_secs);
        let epoch = SystemTime::UNIX_EPOCH;
        for (now, name) in [(epoch, Some("runs/nano-19700101-000000")), (epoch - second, None), (epoch + days, None)] {
            let named = dated_folder("nano", now);
            assert_eq!(named.as_ref().ok().map(PathBuf::as_path), name.map(Path::new), "{now:?}");
            assert!(named.is_ok() || named.unwrap_err().to_string().contains("give --out"));
        }
    }
}
