//! The fields for the parameters of a job type, from their JSON Schema, and the parameters that
//! were entered.
//!
//! An object is shown as its own fields, which may be nested; what has no simple form is entered as
//! JSON. The name of a field is the JSON pointer of its parameter.

use serde_json::{Map, Value, json};

use crate::html::fields::{Entry, Field};
use crate::http::form::{Fields, Problems};

/// Begins the name of a field; the pointer of its parameter follows. That of all parameters is the
/// empty one.
const PARAMETER: &str = "parameter:";
/// How deep objects are shown as fields. A schema may contain itself.
const DEPTH: usize = 4;
/// The number of fields from which on objects are entered as JSON.
const FIELDS: usize = 100;

/// Returns the fields for the parameters of a schema.
pub fn parameter_fields(schema: &Value) -> Vec<Field> {
    if schema["type"] == "null" {
        return Vec::new();
    }
    leaves(schema).iter().map(Leaf::field).collect()
}

/// Returns the parameters that were entered, and notes which fields cannot be read.
pub fn entered_parameters(schema: &Value, fields: &Fields, problems: &mut Problems) -> Value {
    if schema["type"] == "null" {
        return Value::Null;
    }
    let mut parameters = Value::Null;
    for leaf in leaves(schema) {
        let name = leaf.name();
        let text = fields.get(&name);
        if text.is_empty() {
            // What an object lacks is wrong with its own fields.
            let parent = leaf
                .pointer
                .rsplit_once('/')
                .map_or("", |(parent, _)| parent);
            if leaf.in_required && !leaf.pointer.is_empty() {
                put(&mut parameters, parent, None);
            }
            continue;
        }
        match leaf.read(text) {
            Ok(value) => put(&mut parameters, &leaf.pointer, Some(value)),
            Err(problem) => problems.add(&name, problem),
        }
    }
    parameters
}

/// Returns the field in which a parameter was entered, or the one that contains it; `None` if there
/// is none.
pub fn field_of(schema: &Value, pointer: &str) -> Option<String> {
    let leaves = leaves(schema);
    let contains = |leaf: &&Leaf<'_>| {
        let rest = pointer.strip_prefix(leaf.pointer.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    leaves.iter().find(contains).map(Leaf::name)
}

/// A parameter that has a field of its own.
struct Leaf<'a> {
    pointer: String,
    title: String,
    schema: &'a Value,
    required: bool,
    /// Whether the object around it must be there.
    in_required: bool,
}

/// Returns the parameters that have a field.
fn leaves(schema: &Value) -> Vec<Leaf<'_>> {
    let mut found = Vec::new();
    let whole = Leaf {
        pointer: String::new(),
        title: String::new(),
        schema,
        required: true,
        in_required: true,
    };
    collect(schema, whole, 0, &mut found);
    found
}

fn collect<'a>(root: &'a Value, leaf: Leaf<'a>, depth: usize, found: &mut Vec<Leaf<'a>>) {
    let schema = resolved(root, leaf.schema);
    let properties = schema["properties"].as_object();
    let is_shown = depth < DEPTH && found.len() < FIELDS;
    let Some(properties) = properties.filter(|it| !it.is_empty() && is_shown) else {
        found.push(Leaf { schema, ..leaf });
        return;
    };
    for (name, property) in properties {
        let named = resolved(root, property)["title"].as_str().unwrap_or(name);
        let title = if leaf.title.is_empty() {
            named.to_owned()
        } else {
            format!("{} › {named}", leaf.title)
        };
        let required = schema["required"].as_array();
        let required = required.is_some_and(|names| names.iter().any(|it| it == name));
        let inner = Leaf {
            pointer: format!("{}/{}", leaf.pointer, escaped(name)),
            title,
            schema: property,
            required: leaf.required && required,
            in_required: leaf.required,
        };
        collect(root, inner, depth + 1, found);
    }
}

/// Returns what a schema refers to in its own document; the schema itself if it refers to nothing.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str();
    let local = reference.and_then(|reference| reference.strip_prefix('#'));
    local
        .and_then(|local| root.pointer(local))
        .unwrap_or(schema)
}

impl Leaf<'_> {
    fn name(&self) -> String {
        format!("{PARAMETER}{}", self.pointer)
    }

    /// Returns the type of the parameter; the one beside null if it can be null, too.
    fn simple_type(&self) -> Option<&str> {
        match &self.schema["type"] {
            Value::String(name) => Some(name),
            Value::Array(names) => {
                let mut others = names.iter().filter(|name| *name != "null");
                let first = others.next()?.as_str();
                first.filter(|_| others.next().is_none())
            }
            _ => None,
        }
    }

    fn field(&self) -> Field {
        let about = self.schema["description"].as_str().unwrap_or_default();
        let title = if self.pointer.is_empty() {
            "Parameters"
        } else {
            &self.title
        };
        let default = &self.schema["default"];
        let choices = |choices: &[Value]| {
            let none = (!self.required || default.is_null()).then(String::new);
            Entry::Choice(
                none.into_iter()
                    .chain(choices.iter().map(text_of))
                    .collect(),
            )
        };
        let entry = match (self.schema["enum"].as_array(), self.simple_type()) {
            (Some(values), _) => choices(values),
            (None, Some("boolean")) => choices(&[json!(true), json!(false)]),
            (None, Some("integer")) => Entry::Integer,
            (None, Some("number")) => Entry::Number,
            (None, Some("string")) => Entry::Line,
            (None, _) => Entry::Text,
        };
        let as_json = entry == Entry::Text;
        let entry = if self.is_secret() {
            Entry::Secret
        } else {
            entry
        };
        let about = match (as_json, about) {
            (true, "") => "As JSON.".to_owned(),
            (true, about) => format!("{about} As JSON."),
            (false, about) => about.to_owned(),
        };
        let value = if default.is_null() {
            String::new()
        } else {
            text_of(default)
        };
        let field = Field::new(&self.name(), title, &about)
            .value(&value)
            .entry(entry);
        if self.required {
            field
        } else {
            field.optional()
        }
    }

    /// Returns whether the parameter is not shown, neither while it is entered nor afterwards.
    fn is_secret(&self) -> bool {
        self.schema["writeOnly"] == true
    }

    /// Reads what was entered: a text stays a text where the schema wants one; anything else is
    /// JSON.
    fn read(&self, text: &str) -> Result<Value, String> {
        let quoted = if self.is_secret() {
            "This".to_owned()
        } else {
            format!("'{text}'")
        };
        let choices = self.schema["enum"].as_array();
        if let Some(choices) = choices {
            let chosen = choices.iter().find(|choice| text_of(choice) == text);
            return chosen.cloned().ok_or_else(|| {
                let texts: Vec<String> = choices.iter().map(text_of).collect();
                format!("{quoted} is none of {}.", texts.join(", "))
            });
        }
        match self.simple_type() {
            Some("string") => Ok(json!(text)),
            Some("integer" | "number") => {
                let number: Option<Value> = serde_json::from_str(text.trim()).ok();
                let number = number.filter(Value::is_number);
                let number = number.ok_or_else(|| format!("{quoted} is not a number."))?;
                let digits = text.trim().trim_start_matches('-');
                // What has more digits than fit would be another number.
                if number.is_f64() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(format!(
                        "{quoted} is too large: a whole number has at most 64 bits."
                    ));
                }
                Ok(number)
            }
            _ => serde_json::from_str(text).map_err(|error| format!("This is not JSON: {error}.")),
        }
    }
}

/// Puts a value at a pointer, and creates the objects around it; without a value, an empty object
/// unless something is there.
fn put(parameters: &mut Value, pointer: &str, value: Option<Value>) {
    let mut at = parameters;
    for name in pointer.split('/').skip(1) {
        at = &mut at[name.replace("~1", "/").replace("~0", "~")];
    }
    match value {
        Some(value) => *at = value,
        None if at.is_null() => *at = Value::Object(Map::new()),
        None => {}
    }
}

/// Returns a name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Returns a value as it is entered: a text as it is, anything else as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(kind: &str, text: &str) -> Result<Value, String> {
        let schema = json!({"type": kind});
        let whole = leaves(&schema).remove(0);
        whole.read(text)
    }

    #[test]
    fn number_is_taken_with_all_its_digits_or_refused() {
        for (kind, text, number) in [
            ("integer", "7", json!(7)),
            ("integer", "18446744073709551615", json!(u64::MAX)),
            ("integer", "-9223372036854775808", json!(i64::MIN)),
            ("number", "1.5", json!(1.5)),
            ("number", "1e30", json!(1e30)),
        ] {
            assert_eq!(entered(kind, text), Ok(number), "{text}");
        }
        for (kind, text) in [
            ("integer", "18446744073709551616"),
            ("number", "-9223372036854775809"),
            ("integer", "123456789012345678901234567890"),
        ] {
            let refused = entered(kind, text).unwrap_err();
            assert!(
                refused.contains(text) && refused.contains("64 bits"),
                "{refused}"
            );
        }
        assert!(entered("integer", "x").is_err());
    }
}
