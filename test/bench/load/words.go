package load

// plainWords are common words of three to five letters that tokenizers of English text have as one token each, alone and
// after a blank. They stand in when the model's own tokenizer is not at hand.
const plainWords = `
able about above act after again age ago air all also and any arm art ask away back bad bag ball bank base bear beat
been best bird black blue board boat body book born both box boy bring build burn bus buy call came camp can car card
care case cat cause cell chair check child city class clean clear close cloud coast cold come cook cool copy corn cost
could count cover cross cry cup cut dark data date day dead deal deep did dog done door down draw dream dress drive drop
dry each early earth east easy eat edge egg end enter even ever every eye face fact fair fall far farm fast father fear
feel feet few field fight fill film find fine fire first fish five flat floor fly food foot for force form four free
fresh from front fruit full game gate gave get girl give glass gold gone good grand grass great green ground group grow
had hair half hall hand hard has hat have head hear heart heat heavy held help her here high hill him his hold hole home
hope horse hot hour house how human hunt ice idea iron job join jump just keep key kind king knew know lake land large
last late laugh law lay lead learn left leg less let level lie life light like line list little live long look lost lot
love low made main make man many map mark may mean meat meet men mile milk mind mine miss money month moon more most
mother move much music must name near neck need never new news next night nine noise north nose note now number ocean
off often oil old one only open order other our out over own page paint pair paper part party pass past path pay people
phone piece place plan plane plant play point poor post power press price pull push put quick quiet race rain raise ran
reach read ready real red rest rice rich ride right ring rise river road rock roll room root rose round row rule run
sad safe said sail salt same sand save saw say scale school sea seat second see seed seem self sell send sense set seven
shape she ship shoe shop short should show side sign silver simple sing sit six size skin sleep slow small smell smile
snow soft soil some son song soon sort sound south space speak speed spell spend sport spot spring stand star start
state stay steel step still stone stood stop store story street strong such sugar sun sure swim table tail take talk
tall tea team tell ten test than that their them then there these they thin thing think third this those three time tiny
tire told tone took tool top total touch town track trade train tree trip true try turn two type under unit until use
usual very view visit voice wait walk wall want war warm was wash watch water wave way wear week weight well went were
west what wheel when where which while white who whole why wide wife wild will wind window wing winter wire wish with
woman wood word work world would write wrong yard year yes yet you young your`
